// A stream's tokens, logprobs and kept sets do not depend on its neighbours:
// equal bits, on a tiny model whose caches shrink many times over.
#include "gtest/gtest.h"
#include "tests/golden/batch_streams.h"
#include "tests/testing/temp_dir.h"

namespace kf::testing {
namespace {

class BatchTest : public ::testing::TestWithParam<bool> {};

TEST_P(BatchTest, TinyModelStreamsEqualSolo) {
  const TempDir folder;
  EngineSetup setup;
  setup.model_path = WriteTinyModel({.seed = 7,
                                     .layers = 3,
                                     .heads = 8,
                                     .kv_heads = 2,
                                     .head_dim = 16,
                                     .ffn = 160,
                                     .context = 1024},
                                    folder.File("tiny.gguf"));
  setup.f32 = GetParam();
  ExpectStreamsEqualSolo(std::move(setup), {.seed = 5,
                                            .vocabulary = kTinyVocabulary,
                                            .layers = 3,
                                            .max_prompt = 300,
                                            .min_new = 60,
                                            .max_new = 100,
                                            .first_new = 120});
}

INSTANTIATE_TEST_SUITE_P(All,
                         BatchTest,
                         ::testing::Bool(),
                         [](const auto& test) {
                           return test.param ? "F32" : "Bf16";
                         });

}  // namespace
}  // namespace kf::testing
