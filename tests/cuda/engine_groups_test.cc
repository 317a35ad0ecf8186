// The engine on the CUDA backend with integer weights: where the file's groups
// are kept as they are (Q8_0, Q4_1), tokens, logprobs and kept sets have the
// bits of bf16 by our own products, alone and among others.
#include <gtest/gtest.h>

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "kernels/cuda/cuda_backend.h"
#include "tests/engine/core/engine_harness.h"
#include "tests/testing/matchers.h"

namespace kf::engine {
namespace {

using testing::IsOk;

const bool kChecked = std::string(KF_EMULATED_MODE) == "check";

struct Case {
  std::string name;
  DType type;
  WeightFormat format;
};
std::ostream& operator<<(std::ostream& stream, const Case& c) {
  return stream << c.name;
}

class EngineGroupsTest : public ::testing::TestWithParam<Case> {
 protected:
  TestEngineParts Parts(std::optional<WeightFormat> format) {
    // cuBLASLt's bits are its own.
    auto backend = CreateCudaBackend({.name = "cuda", .cublaslt_path = "none"});
    EXPECT_THAT(backend, IsOk());
    TestEngineParts parts = {
        .options = TinyOptionsOn("cuda", WeightFormat::kBF16),
        .backend = *std::move(backend)};
    parts.options.weight_format = format;
    parts.spec.weight_type = GetParam().type;
    return parts;
  }
};

// A prompt of more rows than the kernel for few takes among them.
std::vector<Request> Requests() {
  std::vector<Request> requests = {
      MakeKeyformerRequest(1, kChecked ? 20 : 80, kChecked ? 4 : 12, 16, 5),
      MakeKeyformerRequest(2, 11, 6, 6, 2)};
  if (!kChecked) requests.push_back(MakeRequest(3, 70, 8));
  for (Request& request : requests) {
    request.cache_report = CacheReportDetail::kFull;
  }
  return requests;
}

void ExpectSame(const Outcome& got, const Outcome& want) {
  EXPECT_THAT(got.status, IsOk());
  EXPECT_FALSE(got.tokens.empty());
  EXPECT_TRUE(SameAnswer(got, want));
  ASSERT_TRUE(got.cache_report.has_value());
  ASSERT_TRUE(want.cache_report.has_value());
  EXPECT_TRUE(SameCaches(got.cache_report->at_end, want.cache_report->at_end));
}

TEST_P(EngineGroupsTest, HasTheBitsOfBf16AloneAndTogether) {
  const std::vector<Request> requests = Requests();
  std::vector<Outcome> want;
  {
    TestEngine bf16(Parts(WeightFormat::kBF16));
    for (const Request& request : requests) want.push_back(bf16.Run(request));
  }
  TestEngine engine(Parts(GetParam().format));
  std::vector<std::shared_ptr<RecordingSink>> sinks;
  for (const Request& request : requests) {
    sinks.push_back(engine.Start(request).second);
  }
  for (size_t i = 0; i < sinks.size(); ++i) {
    SCOPED_TRACE(::testing::Message() << "request " << i << " among others");
    ExpectSame(sinks[i]->Wait(), want[i]);
  }
  SCOPED_TRACE("alone");
  ExpectSame(engine.Run(requests[0]), want[0]);
  engine.ExpectNothingHeld();
}

// Not left to bf16, as where a backend had no integers.
TEST_P(EngineGroupsTest, AutoTakesTheFilesOwn) {
  TestEngine engine(Parts(std::nullopt));
  EXPECT_EQ(engine->options().weight_format, GetParam().format);
}

INSTANTIATE_TEST_SUITE_P(
    Formats,
    EngineGroupsTest,
    ::testing::Values(Case{"Q8", DType::kQ8_0, WeightFormat::kQ8},
                      Case{"Q4", DType::kQ4_1, WeightFormat::kQ4}),
    [](const auto& named) { return named.param.name; });

}  // namespace
}  // namespace kf::engine
