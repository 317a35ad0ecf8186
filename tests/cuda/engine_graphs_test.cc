// The engine on the CUDA backend with decode steps as graphs, and without:
// tokens, logprobs and kept sets have the same bits, whoever joins and leaves.
#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "kernels/cuda/cuda_backend.h"
#include "tests/engine/core/engine_harness.h"
#include "tests/engine/core/hook_backend.h"
#include "tests/testing/matchers.h"

#if defined(KF_CUDA_EMULATION)
#include "runtime_api.h"
#endif

namespace kf::engine {
namespace {

using testing::IsOk;

// What graphs have done, on the emulator; nothing is known of a device's.
struct Counts {
  int captured = 0;
  int launched = 0;
};
Counts Count() {
#if defined(KF_CUDA_EMULATION)
  const emu::GraphCounts counts = emu::graph_counts();
  return {counts.captured, counts.launched};
#else
  return {};
#endif
}
#if defined(KF_CUDA_EMULATION)
constexpr bool kCounted = true;
#else
constexpr bool kCounted = false;
#endif

// The check build looks at every load: there it is one sample, no beams, and
// bf16 alone, whose products are few to look at.
const bool kChecked = std::string(KF_EMULATED_MODE) == "check";

std::unique_ptr<Backend> OnCuda(bool graphs) {
  auto backend = CreateCudaBackend({.name = "cuda", .cuda_graphs = graphs});
  EXPECT_THAT(backend, IsOk());
  return *std::move(backend);
}

TestEngineParts Parts(bool graphs, WeightFormat format) {
  return {.options = TinyOptionsOn("cuda", format), .backend = OnCuda(graphs)};
}

using Answers = std::vector<std::vector<Outcome>>;

// `late` are submitted when the first has `after` tokens.
Answers RunTogether(TestEngine& engine,
                    const std::vector<Request>& early,
                    const std::vector<Request>& late,
                    int after) {
  std::vector<std::shared_ptr<RecordingSink>> sinks;
  for (const Request& request : early) {
    sinks.push_back(engine.Start(request).second);
  }
  sinks.front()->WaitForUpdates(after);
  for (const Request& request : late) {
    sinks.push_back(engine.Start(request).second);
  }
  Answers answers;
  for (const auto& sink : sinks) answers.push_back(sink->WaitAll());
  engine.ExpectNothingHeld();
  return answers;
}

void ExpectSame(const Outcome& got,
                const Outcome& want,
                const std::string& what) {
  EXPECT_THAT(got.status, IsOk()) << what;
  EXPECT_TRUE(SameAnswer(got, want)) << what;
  ASSERT_EQ(got.cache_report.has_value(), want.cache_report.has_value())
      << what;
  if (!got.cache_report) return;
  EXPECT_TRUE(SameCaches(got.cache_report->at_end, want.cache_report->at_end))
      << what;
}

void ExpectSame(const Answers& got, const Answers& want) {
  ASSERT_EQ(got.size(), want.size());
  for (size_t i = 0; i < got.size(); ++i) {
    ASSERT_EQ(got[i].size(), want[i].size()) << "request " << i;
    for (size_t j = 0; j < got[i].size(); ++j) {
      ExpectSame(
          got[i][j], want[i][j],
          "request " + std::to_string(i) + ", sequence " + std::to_string(j));
    }
  }
}

Request Reported(Request request) {
  request.cache_report = CacheReportDetail::kFull;
  return request;
}

// What a graph can have: any policy that evicts a head at a time, or nothing.
std::vector<Request> ForGraphs() {
  std::vector<Request> requests;
  requests.push_back(Reported(MakeKeyformerRequest(1, 30, 26, 12, 4)));
  requests.push_back(Reported(MakeKeyformerRequest(2, 11, 7, 6, 0)));
  requests.back().sampling.temperature = 1.0;
  requests.push_back(Reported(MakeRequest(3, 110, 24)));  // a second chunk
  requests.push_back(Reported(MakeKeyformerRequest(4, 21, 15, 9, 9)));
  requests.back().cache.policy = CachePolicy::kH2O;
  requests.push_back(Reported(MakeRequest(5, 25, 11)));
  requests.back().cache.policy = CachePolicy::kWindow;
  requests.back().cache.tokens = 10;
  requests.push_back(Reported(MakeKeyformerRequest(6, 20, 9, 10, 3)));
  requests.back().cache.score_norm = ScoreNorm::kAge;
  requests.back().cache.resample_once = true;
  requests.back().samples = kChecked ? 1 : 3;
  requests.back().sampling.temperature = 1.2;
  requests.push_back(Reported(MakeKeyformerRequest(7, 20, 9, 10, 3)));
  requests.back().cache.decode_scores = false;
  requests.back().cache.noise = NoiseKind::kGaussian;
  return requests;
}

// What it cannot.
std::vector<Request> NotForGraphs() {
  std::vector<Request> requests;
  requests.push_back(MakeRequest(11, 40, 6));
  requests.back().cache.policy = CachePolicy::kQuest;
  requests.back().cache.tokens = 16;
  requests.back().cache.full_layers = 1;
  requests.push_back(Reported(MakeKeyformerRequest(12, 20, 5, 8, 2)));
  requests.back().cache.scope = SelectionScope::kModel;
  requests.push_back(Reported(MakeKeyformerRequest(13, 20, 5, 8, 2)));
  requests.back().cache.scope = SelectionScope::kLayer;
  requests.push_back(Reported(MakeKeyformerRequest(14, 20, 5, 8, 2)));
  requests.back().cache.positions = CachePositions::kCache;
  if (kChecked) return requests;
  requests.push_back(MakeKeyformerRequest(15, 20, 5, 8, 2));
  requests.back().sampling = {};
  requests.back().output = {};
  requests.back().beam = BeamParams{.width = 2};
  return requests;
}

class EngineGraphsTest : public ::testing::TestWithParam<WeightFormat> {
 protected:
  // With graphs against without: the same arrivals.
  void Compare(const std::vector<Request>& early,
               const std::vector<Request>& late,
               int after) {
    TestEngine plain(Parts(/*graphs=*/false, GetParam()));
    const Answers want = RunTogether(plain, early, late, after);
    TestEngine engine(Parts(/*graphs=*/true, GetParam()));
    const Counts before = Count();
    ExpectSame(RunTogether(engine, early, late, after), want);
    counts_ = {Count().captured - before.captured,
               Count().launched - before.launched};
  }

  Counts counts_;
};

TEST_P(EngineGraphsTest, TheSameBitsAsRequestsJoinAndLeave) {
  std::vector<Request> early = ForGraphs();
  const std::vector<Request> late(early.begin() + 4, early.end());
  early.resize(4);
  Compare(early, late, 4);
  if (!kCounted) return;
  // The longest has 25 steps; buckets of 1 to 16 rows, of one chunk and two.
  EXPECT_GE(counts_.launched, 25);
  EXPECT_GE(counts_.captured, 3);
  EXPECT_LE(counts_.captured, 12);
}

TEST_P(EngineGraphsTest, WhatNoGraphHasRunsBesideThem) {
  const std::vector<Request> early = {
      Reported(MakeKeyformerRequest(1, 30, 20, 12, 4)),
      Reported(MakeRequest(2, 12, 12))};
  Compare(early, NotForGraphs(), 3);
  if (!kCounted) return;
  EXPECT_GT(counts_.launched, 0);
}

struct PreemptionObserver final : EngineObserver {
  void OnPreempted() override { ++preempted; }
  std::atomic<int> preempted{0};
};

// FULL requests that a small pool preempts, and that are replayed.
TEST_P(EngineGraphsTest, ReplaysAfterPreemption) {
  uint64_t page_bytes = 0;
  {
    TestEngine probe(Parts(/*graphs=*/false, GetParam()));
    page_bytes = probe->options().kv_pool_bytes /
                 static_cast<uint64_t>(probe->Stats().pages_total);
  }
  std::vector<Request> requests;
  for (uint32_t i = 0; i < 3; ++i) {
    requests.push_back(MakeRequest(i + 1, 20, 40));
  }
  const auto run = [&](bool graphs) {
    PreemptionObserver observer;
    TestEngineParts parts = Parts(graphs, GetParam());
    // Of two layers: two pages each at first, four at the end.
    parts.options.kv_pool_bytes = 14 * page_bytes;
    parts.observer = &observer;
    TestEngine engine(std::move(parts));
    const Answers answers = RunTogether(engine, requests, {}, 1);
    EXPECT_GT(observer.preempted, 0);
    return answers;
  };
  ExpectSame(run(true), run(false));
}

TEST_P(EngineGraphsTest, SwitchedOffThereIsNone) {
  const Counts before = Count();
  TestEngine engine(Parts(/*graphs=*/false, GetParam()));
  engine.Run(MakeKeyformerRequest(1, 20, 6, 8, 2));
  EXPECT_EQ(Count().captured, before.captured);
  EXPECT_EQ(Count().launched, before.launched);
}

std::vector<WeightFormat> Formats() {
  if (kChecked) return {WeightFormat::kBF16};
  return {WeightFormat::kBF16, WeightFormat::kF32};
}

INSTANTIATE_TEST_SUITE_P(Formats,
                         EngineGraphsTest,
                         ::testing::ValuesIn(Formats()));

}  // namespace
}  // namespace kf::engine
