// A device whose memory the pool takes to the last page: no request needs more
// of it, since all that operations work in has been taken before.
#if defined(KF_CUDA_EMULATION)
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "kernels/cuda/cuda_backend.h"
#include "runtime_api.h"
#include "tests/engine/core/engine_harness.h"
#include "tests/testing/matchers.h"

namespace kf::engine {
namespace {

using testing::IsOk;

const bool kChecked = std::string(KF_EMULATED_MODE) == "check";
constexpr size_t kUsualLimit = size_t{2} << 30;
constexpr int32_t kContext = 256;

class EngineMemoryTest : public ::testing::TestWithParam<WeightFormat> {
 protected:
  ~EngineMemoryTest() override { emu::SetDeviceLimit(kUsualLimit); }

  static TestEngineParts Parts(double share, uint64_t pool_bytes) {
    auto backend = CreateCudaBackend({.name = "cuda", .cublaslt_path = "none"});
    EXPECT_THAT(backend, IsOk());
    TestEngineParts parts = {.options = TinyOptionsOn("cuda", GetParam()),
                             .backend = *std::move(backend)};
    parts.options.max_batch = 6;
    parts.options.gpu_memory_share = share;
    parts.options.kv_pool_bytes = pool_bytes;
    parts.spec.context = kContext;
    parts.spec.weight_type = DType::kQ4_1;
    return parts;
  }

  // All that is taken by an engine with the smallest pool.
  static size_t BytesWithoutPool() {
    TestEngine engine(Parts(1.0, 1 << 16));
    return emu::DeviceBytes() - engine->options().kv_pool_bytes;
  }

  // Prompts of more rows than decode steps have, and whatever takes working
  // memory in a way of its own.
  static std::vector<Request> Requests() {
    const int32_t n = kChecked ? 70 : 150;
    std::vector<Request> requests;
    requests.push_back(MakeRequest(1, n, 4));
    requests.push_back(MakeKeyformerRequest(2, n, 4, 40, 10));
    requests.back().cache_report = CacheReportDetail::kFull;
    requests.push_back(MakeKeyformerRequest(3, n, 4, 40, 10));
    requests.back().cache.positions = CachePositions::kCache;
    requests.push_back(MakeKeyformerRequest(4, 70, 4, 40, 10));
    requests.back().cache.scope = SelectionScope::kModel;
    if (kChecked) return requests;
    requests.push_back(MakeKeyformerRequest(5, 70, 4, 40, 10));
    requests.back().sampling = {};
    requests.back().output = {};
    requests.back().beam = BeamParams{.width = 4};
    requests.push_back(MakeKeyformerRequest(6, 80, 4, 40, 10));
    requests.back().samples = 6;
    requests.back().sampling = {.temperature = 1.0,
                                .repetition_penalty = 1.2,
                                .frequency_penalty = 0.5};
    requests.back().output.logprobs = true;
    requests.back().output.top_logprobs = 60;
    requests.back().output.prompt_logprobs = true;
    return requests;
  }
};

TEST_P(EngineMemoryTest, ThePoolMayTakeAllThatIsLeft) {
  // Less than the pool could use, and no whole number of pages.
  const size_t limit = BytesWithoutPool() + 300'001;
  emu::SetDeviceLimit(limit);
  TestEngine engine(Parts(1.0, 0));
  const size_t taken = emu::DeviceBytes();
  const auto page =
      static_cast<size_t>(engine->options().kv_pool_bytes /
                          static_cast<uint64_t>(engine->Stats().pages_total));
  ASSERT_LT(limit - taken, page);
  std::vector<std::shared_ptr<RecordingSink>> sinks;
  for (const Request& request : Requests()) {
    EXPECT_THAT(engine.Run(request).status, IsOk());
    sinks.push_back(engine.Start(request).second);
  }
  for (const auto& sink : sinks) EXPECT_THAT(sink->Wait().status, IsOk());
  EXPECT_EQ(emu::DeviceBytes(), taken);
  engine.ExpectNothingHeld();
}

INSTANTIATE_TEST_SUITE_P(Formats,
                         EngineMemoryTest,
                         ::testing::Values(WeightFormat::kF32,
                                           WeightFormat::kBF16,
                                           WeightFormat::kQ4),
                         [](const auto& test) {
                           return std::to_string(static_cast<int>(test.param));
                         });

}  // namespace
}  // namespace kf::engine
#endif
