#include "tools/sim/simulation.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <numeric>
#include <string>

#include "tests/testing/matchers.h"
#include "tests/tools/sim/sim_support.h"
#include "tools/sim/sim_report.h"

namespace kf::sim {
namespace {

using engine::CachePolicy;
using engine::TimePoint;
using ::testing::ElementsAre;
using testing::IsOk;
using testing::StatusIs;

// n = 16, T = 3: two decode steps, the last token is never fed.
TEST(SimulateTest, OneFullRequestTakesWhatItsWorkTakes) {
  const Statistics s = RunWith(kFull, {Asks(2.0, 16, 3)});
  ASSERT_EQ(s.count(Outcome::kFinished), 1);
  EXPECT_THAT(s.queue_s, ElementsAre(0.0));
  const double first = PromptSeconds(16, false);
  ASSERT_EQ(s.first_token_s.size(), 1U);
  EXPECT_NEAR(s.first_token_s[0], first, kTick);
  const double gaps = DecodeSeconds(2 * 17, 0) + DecodeSeconds(2 * 18, 0);
  EXPECT_NEAR(s.request_s[0], first + gaps, kTick);
  EXPECT_NEAR(engine::ToSeconds(s.makespan), first + gaps, kTick);
  EXPECT_EQ(s.inter_token_s.Summarize().count, 2U);
  EXPECT_EQ(s.decode_steps, 2);
  EXPECT_EQ(s.output_tokens, 3);
  // ceil((16 + 3 + 1) / 16) = 2 pages in each layer, of 40.
  EXPECT_DOUBLE_EQ(s.max_pool_use, 2.0 / 40.0);
}

// k = 8: each step attends to 8 kept tokens and its own, and scores them.
TEST(SimulateTest, OneBudgetedRequestReadsItsBudget) {
  const Statistics s = RunWith(kHalf, {Asks(0.0, 16, 3)});
  ASSERT_EQ(s.count(Outcome::kFinished), 1);
  EXPECT_NEAR(s.request_s[0],
              PromptSeconds(16, true) + 2 * DecodeSeconds(2 * 9, 2 * 9), kTick);
  EXPECT_DOUBLE_EQ(s.max_pool_use, 1.0 / 40.0);
}

// 40 pages a layer. A full request needs ceil((64 + 1) / 16) = 5 of them after
// its prompt, and the room of one more; one of half the prompt
// ceil((32 + 1) / 16) = 3 from its admission to its end.
TEST(SimulateTest, TheBatchIsWhatThePagesSay) {
  const std::vector<TraceRequest> trace(40, Asks(0.0, 64, 64));
  EXPECT_EQ(RunWith(kFull, trace).max_rows, 40 / 6);
  EXPECT_EQ(RunWith(kHalf, trace).max_rows, 40 / 3);
}

// The paper's model and first length on its machine: a full request has the
// room of its prompt and a page more when it is admitted.
TEST(SimulateTest, ThePapersBatchesAreThoseOfThePages) {
  const CostModel cost(*FindDevice("a100-80gb"), *FindModel("mpt-7b"));
  SimulationOptions options;
  const auto pages = PlanPool(*FindDevice("a100-80gb"), cost, {});
  ASSERT_THAT(pages, IsOk());
  options.replica.limits = {.pool_pages = *pages,
                            .workspace_tokens = 16384,
                            .max_batch = 512,
                            .layers = 32,
                            .slice_tokens = 2048,
                            .call_rows = 2048};
  const std::vector<TraceRequest> trace(300, Asks(0.0, 1024, 1024));
  options.policy = kFull;
  const Statistics full = Simulate(cost, options, trace);
  options.policy = kHalf;
  const Statistics half = Simulate(cost, options, trace);
  // The first ones have grown by a page when the last ones come.
  const int64_t fit = *pages / (32 * 66);
  EXPECT_LE(std::abs(full.max_rows - fit), 1);
  EXPECT_EQ(half.max_rows, *pages / (32 * 33));
}

std::vector<TraceRequest> MixedTrace() {
  auto trace = DrawTrace({.requests = 600,
                          .rate = 8.0,
                          .prompt_tokens = 40,
                          .output_tokens = 20,
                          .spread = 1.4,
                          .max_tokens = 5000,
                          .seed = 11});
  const PolicySpec kinds[] = {kFull,
                              kHalf,
                              {CachePolicy::kWindow, 0.3},
                              {CachePolicy::kH2O, 0.9},
                              {CachePolicy::kQuest, 0.2}};
  for (size_t i = 0; i < trace.size(); ++i) {
    trace[i].policy = kinds[i % std::size(kinds)];
    trace[i].priority = static_cast<int32_t>(i % 3);
  }
  trace[7].prompt_tokens = 4096;  // fills the context
  return trace;
}

SimulationOptions CrowdedOptions() {
  SimulationOptions options = TinyOptions();
  options.replica.max_queue_requests = 4;
  options.deadline_s = 2.0;
  return options;
}

TEST(SimulateTest, EveryRequestIsAccountedForOnce) {
  for (const int32_t replicas : {1, 3}) {
    SimulationOptions options = CrowdedOptions();
    options.replicas = replicas;
    const Statistics s = RunWith(kFull, MixedTrace(), options);
    EXPECT_EQ(s.requests, 600);
    EXPECT_EQ(std::accumulate(std::begin(s.outcomes), std::end(s.outcomes),
                              int64_t{0}),
              600);
    // The trace meets every fate.
    EXPECT_GT(s.count(Outcome::kFinished), 30) << replicas;
    EXPECT_EQ(s.count(Outcome::kInvalid), 1) << replicas;
    EXPECT_GT(s.count(Outcome::kNeverFits), 0) << replicas;
    EXPECT_GT(s.count(Outcome::kQueueFull), 0) << replicas;
    EXPECT_GT(s.count(Outcome::kDeadline), 0) << replicas;
    EXPECT_EQ(s.request_s.size(),
              static_cast<size_t>(s.count(Outcome::kFinished)));
    EXPECT_LE(s.max_pool_use, 1.0);
    EXPECT_LE(s.max_rows, 64);
  }
}

TEST(SimulateTest, EveryTokenIsGeneratedOnce) {
  const std::vector<TraceRequest> trace = DrawTrace({.requests = 200,
                                                     .rate = 5.0,
                                                     .prompt_tokens = 50,
                                                     .output_tokens = 20,
                                                     .spread = 0.5,
                                                     .max_tokens = 200,
                                                     .seed = 3});
  const Statistics s = RunWith(kHalf, trace);
  int64_t prompts = 0;
  int64_t outputs = 0;
  for (const TraceRequest& r : trace) {
    prompts += r.prompt_tokens;
    outputs += r.output_tokens;
  }
  EXPECT_EQ(s.count(Outcome::kFinished), 200);
  EXPECT_EQ(s.prompt_tokens, prompts);
  EXPECT_EQ(s.output_tokens, outputs);
  // Each token but a request's first is a row of a decode step.
  EXPECT_EQ(s.decode_rows, outputs - 200);
  EXPECT_EQ(s.inter_token_s.Summarize().count,
            static_cast<size_t>(outputs - 200));
}

// What the scheduler makes of six requests, in numbers: a change of it, or of
// the costs, shows here first.
TEST(SimulateTest, ASmallTraceComesOutAsBefore) {
  const auto trace = ParseTrace(
      "arrival_s,prompt_tokens,output_tokens,policy,ratio,priority\n"
      "0,100,8,keyformer,0.5,0\n"
      "0.01,40,20,h2o,0.9,0\n"
      "0.01,200,5,keyformer,0.25,1\n"
      "0.5,16,30,window,1,0\n"
      "0.9,300,2,h2o,0.25,0\n"
      "5,64,64,keyformer,1,0\n");
  ASSERT_THAT(trace, IsOk());
  const Statistics s = RunWith(kFull, *trace);
  EXPECT_EQ(s.count(Outcome::kFinished), 6);
  EXPECT_EQ(s.makespan.count(), 9758112000);
  EXPECT_EQ(s.steps, 69);
  EXPECT_EQ(s.decode_rows, 123);
  EXPECT_EQ(s.max_rows, 6);
  EXPECT_DOUBLE_EQ(s.max_pool_use, 0.575);
  std::vector<int64_t> first_token_us;
  for (const double seconds : s.first_token_s) {
    first_token_us.push_back(std::llround(seconds * 1e6));
  }
  EXPECT_THAT(first_token_us,
              ElementsAre(504040, 2606384, 2606384, 2116384, 6299224, 2411232));
}

TEST(SimulateTest, TheSameInputGivesTheSameOutput) {
  SimulationOptions options = CrowdedOptions();
  options.replicas = 3;
  const std::string once = Dump(RunWith(kHalf, MixedTrace(), options));
  EXPECT_EQ(Dump(RunWith(kHalf, MixedTrace(), options)), once);
  options.balancing = Balancing::kRoundRobin;
  EXPECT_NE(Dump(RunWith(kHalf, MixedTrace(), options)), once);
}

TEST(SimulateTest, AContextCutsTheAnswer) {
  SimulationOptions options = TinyOptions();
  options.replica.limits.pool_pages = 2 * 300;
  const Statistics s = RunWith(kFull, {Asks(0.0, 4090, 100)}, options);
  EXPECT_EQ(s.output_tokens, 6);
}

TEST(SimulateTest, ClientsSendTheirNextRequestAfterTheirLast) {
  SimulationOptions options = TinyOptions();
  options.clients = 3;
  const std::vector<TraceRequest> trace(12, Asks(1e6, 16, 8));
  const Statistics s = RunWith(kHalf, trace, options);
  EXPECT_EQ(s.count(Outcome::kFinished), 12);
  EXPECT_EQ(s.max_rows, 3);
  EXPECT_LT(engine::ToSeconds(s.makespan), 1e5);
}

TEST(SimulateTest, ARefusedClientGoesOn) {
  SimulationOptions options = TinyOptions();
  options.clients = 1;
  const Statistics s = RunWith(
      kFull, {Asks(0, 1000, 8), Asks(0, 5000, 8), Asks(0, 16, 8)}, options);
  EXPECT_EQ(s.count(Outcome::kNeverFits), 1);
  EXPECT_EQ(s.count(Outcome::kInvalid), 1);
  EXPECT_EQ(s.count(Outcome::kFinished), 1);
}

// All beams run each step; the tokens are those of one answer.
TEST(SimulateTest, BeamsAreRowsOfOneRequest) {
  SimulationOptions options = TinyOptions();
  options.beams = 4;
  const Statistics s = RunWith(kHalf, {Asks(0.0, 64, 10)}, options);
  EXPECT_EQ(s.output_tokens, 10);
  EXPECT_EQ(s.max_rows, 4);
  EXPECT_DOUBLE_EQ(s.max_pool_use, 4 * 3.0 / 40.0);
}

// Long and short requests take turns, so taking turns gives one replica all
// the long ones.
TEST(SimulateTest, ABalancerThatReadsLoadsSpreadsThem) {
  std::vector<TraceRequest> trace;
  trace.reserve(200);
  for (int i = 0; i < 200; ++i) {
    trace.push_back(Asks(0.8 * i, i % 2 == 0 ? 200 : 8, i % 2 == 0 ? 60 : 4));
  }
  SimulationOptions options = TinyOptions();
  options.replicas = 2;
  options.poll = std::chrono::milliseconds(50);
  const auto mean_wait = [&](Balancing balancing) {
    options.balancing = balancing;
    return tools::Summarize(RunWith(kFull, trace, options).first_token_s).mean;
  };
  EXPECT_LT(mean_wait(Balancing::kLoad),
            0.7 * mean_wait(Balancing::kRoundRobin));
}

// On a machine that needs centuries the clock stops, and all ends the same.
TEST(SimulateTest, NoMachineIsTooSlow) {
  DeviceSpec device = TinyDevice();
  device.memory_bytes_per_s = 1.0;
  device.efficiency = 1e-9;
  SimulationOptions options = TinyOptions();
  options.clients = 1;
  options.deadline_s = 1e9;
  const std::vector<TraceRequest> trace(20, Asks(0.0, 64, 64));
  const Statistics s = Simulate({device, TinyModel()}, options, trace);
  EXPECT_EQ(s.count(Outcome::kFinished) + s.count(Outcome::kDeadline), 20);
}

TEST(ReplicaTest, WithinAStepItsLoadIsThatOfItsBeginning) {
  const CostModel cost = TinyCost();
  Statistics statistics;
  Replica replica(TinyOptions().replica, cost, statistics);
  Job job{.id = 1,
          .sizes = *SizesOf(Asks(0, 16, 1), TinyModel(), TinyOptions()),
          .deadline = std::nullopt,
          .arrival = TimePoint()};
  ASSERT_EQ(replica.Submit(std::move(job)), Outcome::kFinished);
  EXPECT_EQ(replica.Load(TimePoint()).waiting, 1);
  EXPECT_EQ(replica.Load(TimePoint()).waiting_prompt_tokens, 16);
  std::vector<Replica::Ended> ended;
  replica.Step(TimePoint(), ended);  // its one token ends it
  ASSERT_EQ(ended.size(), 1U);
  EXPECT_EQ(ended[0].at, replica.ready());
  const LoadView during = replica.Load(replica.ready() - engine::Duration(1));
  EXPECT_EQ(during.running, 1);
  EXPECT_EQ(during.waiting, 0);
  EXPECT_GT(during.kv_usage_ratio, 0.0);
  EXPECT_EQ(replica.Load(replica.ready()).running, 0);
  EXPECT_EQ(replica.Load(replica.ready()).kv_usage_ratio, 0.0);
  EXPECT_TRUE(replica.idle());
}

TEST(PlanPoolTest, IsWhatWeightsAndWorkspaceLeave) {
  const CostModel cost = TinyCost();
  const MemoryOptions options{.memory_share = 0.5, .workspace_tokens = 1000};
  // (500,000 - 544 - 24 x 1000) / 256.
  EXPECT_THAT(PlanPool(TinyDevice(), cost, options), IsOk());
  EXPECT_EQ(*PlanPool(TinyDevice(), cost, options), 1857);
  EXPECT_EQ(*PlanPool(TinyDevice(), cost, {.kv_pool_bytes = 2600.0}), 10);
}

TEST(PlanPoolTest, NamesWhatDoesNotFit) {
  const CostModel cost = TinyCost();
  EXPECT_THAT(PlanPool(TinyDevice(), cost,
                       {.memory_share = 0.5, .workspace_tokens = 100000}),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       "memory_share of device is 500000"));
  EXPECT_THAT(PlanPool(TinyDevice(), cost, {.kv_pool_bytes = 500.0}),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       "kv_pool_bytes: 500, want at least 512"));
}

}  // namespace
}  // namespace kf::sim
