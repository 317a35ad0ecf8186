// A request's answer depends on the request alone: not on its neighbours, its
// place, the slicing of prompts, or the number of threads.
#include <gtest/gtest.h>

#include <string>
#include <tuple>
#include <vector>

#include "kernels/ref/ref_backend.h"
#include "tests/engine/core/engine_harness.h"

namespace kf::engine {
namespace {

// Of all kinds: policies, lengths around tile and page borders, sampling,
// penalties, prompt logprobs.
std::vector<Request> MixedRequests() {
  std::vector<Request> requests;
  requests.push_back(MakeRequest(1, 5, 30));
  requests.push_back(MakeKeyformerRequest(2, 70, 40, 20, 5));
  requests.push_back(MakeKeyformerRequest(3, 33, 24, 33, 0));
  requests.push_back(MakeRequest(4, 130, 20));
  requests.push_back(MakeKeyformerRequest(5, 1, 50, 8, 8));
  requests.push_back(MakeKeyformerRequest(6, 96, 33, 47, 14));
  requests.push_back(MakeKeyformerRequest(7, 31, 17, 16, 4));
  requests.push_back(MakeKeyformerRequest(8, 64, 60, 30, 9));
  requests[1].sampling.temperature = 1.3;
  requests[3].output.prompt_logprobs = true;
  requests[5].sampling.temperature = 0.8;
  requests[5].sampling.top_k = 40;
  requests[5].sampling.repetition_penalty = 1.2;
  requests[6].cache.policy = CachePolicy::kH2O;
  requests[7].cache.decode_scores = false;
  requests.push_back(MakeKeyformerRequest(9, 50, 30, 20, 6));
  requests.back().cache.policy = CachePolicy::kWindow;
  requests.push_back(MakeKeyformerRequest(10, 60, 30, 24, 6));
  requests.back().cache.scope = SelectionScope::kLayer;
  requests.back().cache.score_norm = ScoreNorm::kAge;
  requests.push_back(MakeKeyformerRequest(11, 90, 30, 17, 5));
  requests.back().cache.scope = SelectionScope::kModel;
  requests.push_back(MakeKeyformerRequest(12, 40, 30, 15, 4));
  requests.back().cache.positions = CachePositions::kCache;
  requests.push_back(MakeKeyformerRequest(13, 80, 30, 32, 0));
  requests.back().cache.policy = CachePolicy::kQuest;
  requests.back().cache.full_layers = 1;
  requests.push_back(MakeKeyformerRequest(14, 64, 30, 30, 8));
  requests.back().cache.layer_weights = {0.5, 1.5};
  for (Request& request : requests)
    request.cache_report = CacheReportDetail::kFull;
  return requests;
}

void ExpectSame(const std::vector<Outcome>& got,
                const std::vector<Outcome>& want,
                const std::string& how) {
  for (size_t i = 0; i < want.size(); ++i) {
    EXPECT_TRUE(SameAnswer(got[i], want[i])) << how << ", request " << i;
    ASSERT_TRUE(got[i].cache_report && want[i].cache_report);
    EXPECT_TRUE(SameCaches(got[i].cache_report->after_prompt,
                           want[i].cache_report->after_prompt))
        << how << ", request " << i;
    EXPECT_TRUE(
        SameCaches(got[i].cache_report->at_end, want[i].cache_report->at_end))
        << how << ", request " << i;
  }
}

std::vector<Outcome> RunAlone(TestEngine& engine) {
  std::vector<Outcome> outcomes;
  for (const Request& request : MixedRequests()) {
    outcomes.push_back(engine.Run(request));
    EXPECT_EQ(outcomes.back().tokens.size(), *request.stopping.max_new_tokens);
  }
  return outcomes;
}

// Request i starts when request i - 1 has had `gap` updates.
std::vector<Outcome> RunStaggered(TestEngine& engine, int gap) {
  std::vector<std::shared_ptr<RecordingSink>> sinks;
  for (const Request& request : MixedRequests()) {
    if (!sinks.empty()) sinks.back()->WaitForUpdates(gap);
    sinks.push_back(engine.Start(request).second);
  }
  std::vector<Outcome> outcomes;
  outcomes.reserve(sinks.size());
  for (const auto& sink : sinks) outcomes.push_back(sink->Wait());
  engine.ExpectNothingHeld();
  return outcomes;
}

struct BackendCase {
  const char* name;
  const char* backend;
  WeightFormat format;
  bool byte_cache = false;
};

class BatchingTest : public ::testing::TestWithParam<BackendCase> {
 protected:
  static EngineOptions Options() {
    EngineOptions options =
        TinyOptionsOn(GetParam().backend, GetParam().format);
    if (GetParam().byte_cache) options.cache_dtype = DType::kI8;
    return options;
  }
};

TEST_P(BatchingTest, JoiningAndLeavingChangesNothing) {
  TestEngine engine({.options = Options()});
  const std::vector<Outcome> alone = RunAlone(engine);
  for (const int gap : {0, 1, 7}) {
    ExpectSame(RunStaggered(engine, gap), alone, "gap " + std::to_string(gap));
  }
}

TEST_P(BatchingTest, SlicingAndThreadsChangeNothing) {
  TestEngine plain({.options = Options()});
  const std::vector<Outcome> alone = RunAlone(plain);
  for (const auto& [slice, threads] :
       {std::pair{32, 1}, std::pair{64, 2}, std::pair{4096, 3}}) {
    EngineOptions options = Options();
    options.prefill_slice_tokens = slice;
    options.backend.threads = threads;
    TestEngine engine({.options = options});
    ExpectSame(RunStaggered(engine, 2), alone,
               "slice " + std::to_string(slice) + ", threads " +
                   std::to_string(threads));
  }
}

// The requests do evict, and noise does matter: otherwise the tests above
// would show less than they say.
TEST_P(BatchingTest, TheRequestsExerciseTheCache) {
  TestEngine engine({.options = Options()});
  Request request = MixedRequests()[1];
  const Outcome outcome = engine.Run(request);
  EXPECT_EQ(outcome.first_usage.evicted_tokens, 50U);
  EXPECT_EQ(outcome.usage.evicted_tokens, 70U + 39U - 20U);
  request.cache.noise_seed = 99;
  const Outcome other = engine.Run(request);
  EXPECT_FALSE(
      SameCaches(outcome.cache_report->at_end, other.cache_report->at_end));
}

INSTANTIATE_TEST_SUITE_P(
    Backends,
    BatchingTest,
    ::testing::Values(
        BackendCase{"ReferenceF32", "reference", WeightFormat::kF32},
        BackendCase{"CpuF32", "cpu", WeightFormat::kF32},
        BackendCase{"CpuBf16", "cpu", WeightFormat::kBF16},
        BackendCase{"CpuQ8", "cpu", WeightFormat::kQ8},
        BackendCase{"CpuByteCache", "cpu", WeightFormat::kBF16, true},
        BackendCase{"ReferenceByteCache", "reference", WeightFormat::kF32,
                    true}),
    [](const auto& param) { return std::string(param.param.name); });

}  // namespace
}  // namespace kf::engine
