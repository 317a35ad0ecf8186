// The same promise on the default model, whose matrices fill whole tiles of the
// packed products.
#include "gtest/gtest.h"
#include "tests/golden/batch_streams.h"
#include "tests/testing/default_model.h"

namespace kf::testing {
namespace {

class BatchDefaultModelTest : public ::testing::TestWithParam<bool> {};

TEST_P(BatchDefaultModelTest, StreamsEqualSolo) {
  EngineSetup setup;
  setup.model_path = DefaultModelPath();
  setup.f32 = GetParam();
  ExpectStreamsEqualSolo(std::move(setup), {.seed = 9,
                                            .vocabulary = 49152,
                                            .layers = 30,
                                            .max_prompt = 32,
                                            .min_new = 10,
                                            .max_new = 14,
                                            .first_new = 16,
                                            .arrivals_per_step = 4});
}

INSTANTIATE_TEST_SUITE_P(All,
                         BatchDefaultModelTest,
                         ::testing::Bool(),
                         [](const auto& test) {
                           return test.param ? "F32" : "Bf16";
                         });

}  // namespace
}  // namespace kf::testing
