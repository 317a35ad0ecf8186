// The engine on the CUDA backend, which samples its rows itself: the tokens and
// logprobs are those of the host's sampler on the same logits, bit for bit, and
// only rows that the device cannot decide travel to the host.
#include <gtest/gtest.h>

#include <atomic>
#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "kernels/cuda/cuda_backend.h"
#include "tests/engine/core/engine_harness.h"
#include "tests/engine/core/hook_backend.h"
#include "tests/testing/matchers.h"

namespace kf::engine {
namespace {

using testing::IsOk;

// The check build looks at every access, so it runs every other option, and
// neither samples nor beams: it takes copies of partly filled pages for reads
// of unset memory.
const bool kChecked = std::string(KF_EMULATED_MODE) == "check";

constexpr int32_t kVocabulary = testing::kTinyVocabulary;

std::unique_ptr<Backend> OnCuda(Hooks hooks) {
  auto backend = CreateCudaBackend({.name = "cuda"});
  EXPECT_THAT(backend, IsOk());
  return std::make_unique<HookBackend>(*std::move(backend), std::move(hooks));
}

std::vector<SamplingParams> AllParams() {
  return {
      {},
      {.temperature = 1.0},
      {.temperature = 1e-30},
      {.temperature = 1e300},
      {.temperature = 1.2, .top_k = 9},
      {.temperature = 0.9, .top_p = 0.8},
      {.temperature = 1.5, .min_p = 0.05},
      {.temperature = 1.5, .top_k = 40, .top_p = 0.9, .min_p = 0.02},
      {.temperature = 1.0, .typical_p = 0.7},  // the host's
      {.temperature = 1.0, .typical_p = 1.0},  // off
      {.repetition_penalty = 1.7},
      {.temperature = 1.0,
       .top_p = 0.95,
       .repetition_penalty = 0.7,
       .presence_penalty = 0.5,
       .frequency_penalty = -0.3},
      {.temperature = 1.0,
       .logit_bias = {{5, 3.0}, {17, -1e9}, {40, -2.5}, {200, 1.0}}},
      {.temperature = 1.0,
       .frequency_penalty = 2.0,
       .logit_bias = {{11, 6.0}, {12, -1e9}}},
  };
}

Request Ask(uint32_t seed, const SamplingParams& params) {
  Request request = MakeKeyformerRequest(seed, 12 + static_cast<int32_t>(seed),
                                         /*max_new_tokens=*/6, 10, 3);
  request.sampling = params;
  request.sampling.seed = 1000 + seed;
  request.stopping.ignore_eos = true;
  return request;
}

// Every option, with logprobs of different widths or none.
std::vector<Request> AllRequests() {
  std::vector<Request> requests;
  uint32_t number = 0;
  for (const SamplingParams& params : AllParams()) {
    const uint32_t i = number++;
    if (kChecked && i % 2 == 0) continue;
    Request request = Ask(i + 1, params);
    request.output.logprobs = i % 3 != 0;
    request.output.top_logprobs = request.output.logprobs ? i : 0;
    request.output.prompt_logprobs = i % 4 == 1;
    requests.push_back(request);
  }
  Request forced = Ask(20, {});
  forced.forced_tokens = {65, 0, kVocabulary - 1, 7};
  forced.stopping = {};
  forced.stopping.max_new_tokens = 4;
  forced.output.logprobs = true;
  forced.output.top_logprobs = 3;
  requests.push_back(forced);
  Request masked = Ask(21, {.temperature = 1.0});
  masked.stopping.ignore_eos = false;
  masked.stopping.min_new_tokens = 3;
  masked.stopping.stop_token_ids = {1, 2, 3, 66};
  requests.push_back(masked);
  Request samples = Ask(22, {.temperature = 1.1, .top_k = 30});
  samples.samples = 3;
  samples.output.logprobs = true;
  if (!kChecked) requests.push_back(samples);
  Request beams = Ask(23, {});
  beams.sampling = {};
  beams.output = {};
  beams.beam = BeamParams{.width = 2};
  if (!kChecked) requests.push_back(beams);
  Request nothing = Ask(24, {});
  nothing.stopping.max_new_tokens = 0;
  nothing.output.logprobs = nothing.output.prompt_logprobs = true;
  requests.push_back(nothing);
  return requests;
}

using Answers = std::vector<std::vector<Outcome>>;

// All at once, so that rows of every kind share a call.
Answers RunTogether(TestEngine& engine, const std::vector<Request>& requests) {
  std::vector<std::shared_ptr<RecordingSink>> sinks;
  for (const Request& request : requests) {
    sinks.push_back(engine.Start(request).second);
  }
  Answers answers;
  for (const auto& sink : sinks) answers.push_back(sink->WaitAll());
  engine.ExpectNothingHeld();
  return answers;
}

void ExpectSame(const Answers& got, const Answers& want) {
  ASSERT_EQ(got.size(), want.size());
  for (size_t i = 0; i < got.size(); ++i) {
    ASSERT_EQ(got[i].size(), want[i].size()) << "request " << i;
    for (size_t j = 0; j < got[i].size(); ++j) {
      EXPECT_THAT(got[i][j].status, IsOk());
      EXPECT_TRUE(SameAnswer(got[i][j], want[i][j]))
          << "request " << i << ", sequence " << j;
    }
  }
}

Answers OnTheHost(const std::vector<Request>& requests) {
  Hooks hooks;
  hooks.host_sampling = true;
  TestEngine engine({.backend = OnCuda(hooks)});
  return RunTogether(engine, requests);
}

TEST(EngineSamplingTest, EveryOptionEqualsTheHostsSampler) {
  const std::vector<Request> requests = AllRequests();
  TestEngine engine({.backend = OnCuda({})});
  ExpectSame(RunTogether(engine, requests), OnTheHost(requests));
}

// A row that the device leaves undecided is the host's, whatever stands beside
// it in the call.
TEST(EngineSamplingTest, UndecidedRowsAreReadByTheHost) {
  const std::vector<Request> requests = AllRequests();
  std::atomic<int> undecided{0};
  Hooks hooks;
  hooks.sampled = [&](std::vector<SampledRow>& rows) {
    for (size_t i = 0; i < rows.size(); i += 2) {
      rows[i].token = {.state = SampleState::kUndecided, .id = 3};
      ++undecided;
    }
    return absl::OkStatus();
  };
  TestEngine engine({.backend = OnCuda(hooks)});
  ExpectSame(RunTogether(engine, requests), OnTheHost(requests));
  EXPECT_GT(undecided, kChecked ? 15 : 30);
}

// Logits travel only where they must, a row at a time.
TEST(EngineSamplingTest, NoOthersLogitsTravel) {
  std::atomic<size_t> bytes{0};
  std::atomic<int> sampled{0};
  Hooks hooks;
  hooks.download = [&](size_t size) {
    bytes += size;
    return absl::OkStatus();
  };
  hooks.sampled = [&](const std::vector<SampledRow>& rows) {
    sampled += static_cast<int>(rows.size());
    return absl::OkStatus();
  };
  TestEngine engine({.backend = OnCuda(hooks)});
  Request plain = Ask(1, {.temperature = 1.0, .top_p = 0.9});
  plain.output.logprobs = true;
  plain.output.top_logprobs = 5;
  bytes = sampled = 0;
  engine.Run(plain);
  EXPECT_EQ(bytes, 0U);
  EXPECT_EQ(sampled, 6);
  Request typical = Ask(2, {.temperature = 1.0, .typical_p = 0.5});
  bytes = sampled = 0;
  RunTogether(engine, {plain, typical});
  EXPECT_EQ(bytes, 6 * sizeof(float) * kVocabulary);
  EXPECT_EQ(sampled, 6);
}

// Spoils rows of the request whose noise seed is kPoisonSeed: a launch that
// waits in the stream writes the row, and a copy after it the NaN.
TEST(EngineSamplingTest, ABadRowEndsItsSequenceAlone) {
  constexpr uint64_t kPoisonSeed = 666;
  Backend* device = nullptr;
  Hooks hooks;
  hooks.decode = [&](const DecodeAttentionArgs& args) -> absl::Status {
    for (size_t i = 0; i < args.items.size(); ++i) {
      if (args.items[i].score.seed != kPoisonSeed ||
          args.items[i].position != 25) {
        continue;
      }
      const float nan = std::numeric_limits<float>::quiet_NaN();
      float* row = args.out + static_cast<int64_t>(i) * args.shape.out_dim();
      if (auto status =
              device->Upload(reinterpret_cast<std::byte*>(row),
                             std::as_bytes(std::span<const float>(&nan, 1)));
          !status.ok()) {
        return status;
      }
    }
    return absl::OkStatus();
  };
  auto backend = CreateCudaBackend({.name = "cuda"});
  ASSERT_THAT(backend, IsOk());
  device = backend->get();
  TestEngine engine({.backend = std::make_unique<HookBackend>(
                         *std::move(backend), std::move(hooks))});
  const Request request = MakeKeyformerRequest(7, 20, 12, 12, 4);
  const Outcome alone = engine.Run(request);
  Request poisoned = MakeKeyformerRequest(8, 20, 12, 12, 4);
  poisoned.cache.noise_seed = kPoisonSeed;
  poisoned.output.logprobs = true;
  const Answers answers = RunTogether(engine, {request, poisoned});
  EXPECT_TRUE(SameAnswer(answers[0].front(), alone));
  EXPECT_THAT(answers[1].front().status, IsOk());
  EXPECT_EQ(answers[1].front().finish_reason, FinishReason::kError);
  EXPECT_EQ(answers[1].front().tokens.size(), 6U);
  EXPECT_EQ(answers[1].front().logprobs.size(), 6U);
}

// An error of the device is the requests'; the engine goes on.
TEST(EngineSamplingTest, AFailedCallEndsItsRequests) {
  std::atomic<bool> broken{false};
  Hooks hooks;
  hooks.sampled = [&](const std::vector<SampledRow>&) -> absl::Status {
    return broken ? absl::InternalError("out of order") : absl::OkStatus();
  };
  TestEngine engine({.backend = OnCuda(hooks)});
  broken = true;
  const Outcome outcome = engine.Run(Ask(3, {}));
  EXPECT_TRUE(absl::IsInternal(outcome.status)) << outcome.status;
  EXPECT_TRUE(outcome.tokens.empty());
  engine.ExpectNothingHeld();
  broken = false;
  EXPECT_THAT(engine.Run(Ask(3, {})).status, IsOk());
}

}  // namespace
}  // namespace kf::engine
