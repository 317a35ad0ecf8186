// Requests that grow page by page, lose their place, and are replayed, in
// virtual time.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <vector>

#include "tests/tools/sim/sim_support.h"

namespace kf::sim {
namespace {

using engine::CachePolicy;
using engine::TimePoint;
using ::testing::SizeIs;

constexpr int64_t kLayers = 2;  // of the tiny model

// Of a decode step of rows that hold so many tokens each, own ones included.
double StepSeconds(const std::vector<int64_t>& held) {
  const CostModel cost = QuickCost();
  const auto rows = static_cast<int64_t>(held.size());
  const int64_t tokens = std::accumulate(held.begin(), held.end(), int64_t{0});
  return cost.Seconds(cost.Decode({.rows = rows,
                                   .read_tokens = kLayers * tokens,
                                   .attended_tokens = kLayers * tokens}));
}

// Of a prompt's rows, or of two prompts' in the same calls, through all layers.
double PromptsSeconds(int64_t rows, int64_t prompts) {
  const CostModel cost = QuickCost();
  PromptWork work;
  for (int64_t i = 0; i < prompts; ++i) work.Add(0, rows, rows);
  const double first_layer = cost.Seconds(cost.Prompt(work));
  work.logit_rows = prompts;
  return first_layer + cost.Seconds(cost.Prompt(work));
}

// Four pages a layer hold one of two requests to its end. Both are let in with
// a page a layer and the room of another, so each has 17 decode steps; then the
// later one gives way, waits until the first has ended, and does its prompt and
// 17 tokens again, whose keys are read once.
TEST(GrowthTest, AReplayCostsThePromptAndTheTokensAgain) {
  SimulationOptions options = TinyOptions();
  options.replica.limits.pool_pages = kLayers * 4;
  const Statistics s =
      RunWith(kFull, {Asks(0.0, 15, 48), Asks(0.0, 15, 48)}, options);
  ASSERT_EQ(s.count(Outcome::kFinished), 2);
  EXPECT_EQ(s.preemptions, 1);
  EXPECT_DOUBLE_EQ(s.max_pool_use, 1.0);

  double together = PromptsSeconds(15, 2);
  for (int64_t held = 16; held < 16 + 17; ++held) {
    together += StepSeconds({held, held});
  }
  double alone = 0.0;  // the last 30 of 47 steps
  for (int64_t held = 33; held < 33 + 30; ++held) alone += StepSeconds({held});
  const CostModel cost = QuickCost();
  const double replay = PromptsSeconds(15, 1) +
                        cost.Seconds(cost.Replay(
                            {.rows = 17,
                             .read_tokens = kLayers * 32,
                             .attended_tokens = kLayers * 17 * (16 + 32) / 2}));
  ASSERT_THAT(s.request_s, SizeIs(2));
  EXPECT_NEAR(s.request_s[0], together + alone, 100 * kTick);
  EXPECT_NEAR(s.request_s[1], together + alone + replay + alone, 200 * kTick);
  EXPECT_NEAR(s.replay_s, replay, kTick);
  EXPECT_NEAR(s.prefill_s, PromptsSeconds(15, 2) + replay, kTick);
  EXPECT_EQ(s.replayed_token_layers, kLayers * (15 + 17));
  // Its client waited for it once, and got each token once.
  EXPECT_EQ(s.output_tokens, 2 * 48);
  EXPECT_EQ(s.decode_rows, 2 * 47);
  EXPECT_EQ(s.queue_s.size(), 2U);
  EXPECT_EQ(s.first_token_s.size(), 2U);
  EXPECT_NEAR(s.inter_token_s.Summarize().max,
              alone + replay + StepSeconds({33}), 100 * kTick);
}

std::vector<TraceRequest> CrowdedTrace(size_t requests) {
  return DrawTrace({.requests = requests,
                    .rate = 6.0,
                    .prompt_tokens = 40,
                    .output_tokens = 60,
                    .spread = 0.8,
                    .max_tokens = 250,
                    .seed = 21});
}

void ExpectNothingLostOrDoubled(const Statistics& s,
                                const std::vector<TraceRequest>& trace) {
  const auto count = static_cast<int64_t>(trace.size());
  int64_t prompts = 0;
  int64_t outputs = 0;
  for (const TraceRequest& r : trace) {
    prompts += r.prompt_tokens;
    outputs += r.output_tokens;
  }
  EXPECT_EQ(s.count(Outcome::kFinished), count);
  EXPECT_EQ(s.prompt_tokens, prompts);
  EXPECT_EQ(s.output_tokens, outputs);
  EXPECT_EQ(s.decode_rows, outputs - count);
  EXPECT_EQ(s.first_token_s.size(), trace.size());
  EXPECT_EQ(s.request_s.size(), trace.size());
  EXPECT_EQ(s.queue_s.size(), trace.size());
  EXPECT_EQ(s.inter_token_s.Summarize().count,
            static_cast<size_t>(outputs - count));
  // Each prompt went through each layer once, but for what was done again.
  EXPECT_EQ(s.prefill_token_layers,
            kLayers * prompts + s.replayed_token_layers);
}

TEST(GrowthTest, PreemptionLosesAndDoublesNothing) {
  const auto trace = CrowdedTrace(400);
  for (const PolicySpec policy : {kFull, {CachePolicy::kQuest, 0.3}}) {
    for (const int32_t slice : {32, 256}) {
      SimulationOptions options = TinyOptions();
      options.replica.limits.slice_tokens = slice;
      options.replica.limits.max_skips = 4;
      const Statistics s = RunWith(policy, trace, options);
      EXPECT_GT(s.preemptions, 10);
      EXPECT_GT(s.replayed_token_layers, 0);
      EXPECT_GT(s.replay_s, 0.0);
      EXPECT_LT(s.replay_s, s.prefill_s);
      ExpectNothingLostOrDoubled(s, trace);
    }
  }
}

TEST(GrowthTest, WhoHasABudgetIsNeverPreempted) {
  const auto trace = CrowdedTrace(400);
  for (const PolicySpec policy :
       {kHalf, {CachePolicy::kWindow, 0.9}, {CachePolicy::kH2O, 0.9}}) {
    const Statistics s = RunWith(policy, trace);
    EXPECT_EQ(s.preemptions, 0);
    EXPECT_EQ(s.replayed_token_layers, 0);
    EXPECT_EQ(s.replay_s, 0.0);
    EXPECT_GT(s.max_pool_use, 0.9);
    ExpectNothingLostOrDoubled(s, trace);
  }
}

// A beam search would have to be searched again: it does not grow.
TEST(GrowthTest, BeamsReserveTheirWholeLength) {
  SimulationOptions options = TinyOptions();
  options.beams = 2;
  const std::vector<TraceRequest> trace(10, Asks(0.0, 64, 64));
  const Statistics s = RunWith(kFull, trace, options);
  EXPECT_EQ(s.preemptions, 0);
  // 4 pages in common and 5 each, of 40.
  EXPECT_EQ(s.max_rows, 2 * (40 / 14));
}

// Priorities and deadlines, budgets and full caches, one replica by hand.
TEST(GrowthTest, EveryPageComesBack) {
  const CostModel cost = QuickCost();
  SimulationOptions options = TinyOptions();
  auto trace = CrowdedTrace(300);
  Statistics statistics;
  Replica replica(options.replica, cost, statistics);
  std::vector<Replica::Ended> ended;
  TimePoint now;
  for (size_t i = 0; i < trace.size(); ++i) {
    trace[i].priority = static_cast<int32_t>(i % 3);
    options.policy = i % 3 == 1 ? kHalf : kFull;
    Job job{.id = i + 1,
            .sizes = *SizesOf(trace[i], TinyModel(), options),
            .priority = trace[i].priority,
            .deadline = std::nullopt,
            .arrival = now};
    if (i % 4 == 0) job.deadline = now + std::chrono::seconds(4);
    ASSERT_EQ(replica.Submit(std::move(job)), Outcome::kFinished);
    const size_t submitted = i + 1;
    for (int step = 0; step < 3 && !replica.idle(); ++step) {
      replica.Step(now, ended);
      now = replica.ready();
      const LoadView load = replica.Load(now);
      // Whoever has not ended runs or waits, the preempted ones too.
      EXPECT_EQ(static_cast<size_t>(load.running + load.waiting),
                submitted - ended.size());
      EXPECT_LE(replica.pages_used(), options.replica.limits.pool_pages);
    }
  }
  while (!replica.idle()) {
    replica.Step(now, ended);
    now = replica.ready();
  }
  EXPECT_THAT(ended, SizeIs(trace.size()));
  std::vector<engine::RequestId> ids;
  for (const Replica::Ended& end : ended) ids.push_back(end.id);
  std::sort(ids.begin(), ids.end());
  EXPECT_EQ(std::adjacent_find(ids.begin(), ids.end()), ids.end());
  EXPECT_GT(statistics.preemptions, 10);
  EXPECT_GT(std::count_if(ended.begin(), ended.end(),
                          [](const auto& end) {
                            return end.outcome == Outcome::kDeadline;
                          }),
            10);
  EXPECT_EQ(replica.pages_used(), 0);
  const LoadView load = replica.Load(now);
  EXPECT_EQ(load.running, 0);
  EXPECT_EQ(load.waiting, 0);
  EXPECT_EQ(load.waiting_prompt_tokens, 0);
  EXPECT_EQ(load.kv_usage_ratio, 0.0);
}

TEST(GrowthTest, TheSameTraceIsPreemptedTheSame) {
  SimulationOptions options = TinyOptions();
  options.replicas = 3;
  options.replica.limits.pool_pages = kLayers * 24;
  const auto trace = CrowdedTrace(400);
  const Statistics once = RunWith(kFull, trace, options);
  EXPECT_GT(once.preemptions, 0);
  EXPECT_EQ(Dump(RunWith(kFull, trace, options)), Dump(once));
}

}  // namespace
}  // namespace kf::sim
