// How fast the prompts' work goes, and how much of it the scheduler then plans.
#include "engine/prefill_pacer.h"

#include <gtest/gtest.h>

#include <chrono>
#include <vector>

#include "engine/scheduler.h"

namespace kf::engine {
namespace {

using std::chrono::milliseconds;

TEST(PrefillPacerTest, IsUnboundedUntilWorkHasBeenSeen) {
  PrefillPacer pacer(milliseconds(100));
  EXPECT_EQ(pacer.Work(), PrefillPacer::kUnbounded);
  pacer.Observe(0, 0.5);   // nothing was done
  pacer.Observe(10, 0.0);  // on a clock that stands still
  EXPECT_EQ(pacer.Work(), PrefillPacer::kUnbounded);
  pacer.Observe(1000, 1.0);
  EXPECT_EQ(pacer.Work(), 100);
}

TEST(PrefillPacerTest, WithoutABoundThereIsNone) {
  PrefillPacer pacer(milliseconds(0));
  pacer.Observe(1000, 10.0);
  EXPECT_EQ(pacer.Work(), PrefillPacer::kUnbounded);
}

TEST(PrefillPacerTest, AMachineSlowerThanTheBoundStillWorks) {
  PrefillPacer pacer(milliseconds(1));
  pacer.Observe(1, 60.0);
  EXPECT_EQ(pacer.Work(), 1);
}

// A machine on which a unit takes 1 ms, and from then on 4 ms.
TEST(PrefillPacerTest, FollowsTheMachineUpAndDown) {
  PrefillPacer pacer(milliseconds(100));
  const auto run = [&](double unit, int steps) {
    for (int i = 0; i < steps; ++i) {
      const int64_t work = pacer.Work();
      pacer.Observe(work, static_cast<double>(work) * unit);
    }
    return pacer.Work();
  };
  pacer.Observe(100, 0.1);
  EXPECT_EQ(pacer.Work(), 100);
  const int64_t after_a_slow_one = run(0.004, 1);
  EXPECT_LT(after_a_slow_one, 50);
  EXPECT_NEAR(static_cast<double>(run(0.004, 10)), 25.0, 1.0);
  EXPECT_LT(run(0.001, 1), 40);
  EXPECT_NEAR(static_cast<double>(run(0.001, 40)), 100.0, 5.0);
}

// The engine's first request is a token, and sets up every lazy part.
TEST(PrefillPacerTest, AWarmUpIsForgotten) {
  PrefillPacer pacer(milliseconds(100));
  pacer.Observe(30, 1.0);
  for (int i = 0; i < 5; ++i) pacer.Observe(7000, 0.1);
  EXPECT_GT(pacer.Work(), 5000);
}

// A tile alone reads as many weights as a whole slice.
TEST(PrefillPacerTest, SmallStepsWeighLittle) {
  PrefillPacer pacer(milliseconds(100));
  pacer.Observe(1000, 0.1);
  pacer.Observe(10, 0.01);  // ten times as much for a unit, but 10 ms
  EXPECT_GT(pacer.Work(), 600);
}

// A prompt's only piece of a plan: rows [first, first + rows) of layer 0.
void ExpectRows(const StepPlan& plan, int32_t first, int32_t rows) {
  ASSERT_EQ(plan.prefill.size(), 1U);
  EXPECT_EQ(plan.prefill[0].layer, 0);
  ASSERT_EQ(plan.prefill[0].pieces.size(), 1U);
  EXPECT_EQ(plan.prefill[0].pieces[0].first_row, first);
  EXPECT_EQ(plan.prefill[0].pieces[0].rows, rows);
}

// 192 token-layers a step; 32 keys cost a row as much again.
TEST(PaceTest, BesideStreamsASliceIsNoLongerThanThePace) {
  Scheduler scheduler({.pool_pages = 100,
                       .workspace_tokens = 1000,
                       .max_batch = 4,
                       .layers = 3,
                       .slice_tokens = 64,
                       .call_rows = 128,
                       .context_of_a_row = 32});
  scheduler.PaceWork(100);
  scheduler.Add({.id = 1, .prompt_tokens = 64, .cache_pages = 10});
  // Nobody decodes yet: the whole slice.
  EXPECT_EQ(scheduler.Plan(TimePoint()).prefill_token_layers, 192);
  scheduler.Add({.id = 2, .prompt_tokens = 128, .cache_pages = 10});
  StepPlan plan = scheduler.Plan(TimePoint());
  EXPECT_EQ(plan.decode, std::vector<RequestId>{1});
  // 32 rows of 16 keys in the mean cost 48; 64 of 32 cost 128, which is more.
  ExpectRows(plan, 0, 32);
  EXPECT_EQ(plan.paced_work, 48);
  // The next 32 attend to 48: 80.
  plan = scheduler.Plan(TimePoint());
  ExpectRows(plan, 32, 32);
  EXPECT_EQ(plan.paced_work, 80);
  // One tile in any case, and the slice's bound where the pace asks for more.
  scheduler.PaceWork(1);
  ExpectRows(scheduler.Plan(TimePoint()), 64, 32);
  scheduler.PaceWork(1000000);
  EXPECT_EQ(scheduler.Plan(TimePoint()).prefill_token_layers, 192);
}

}  // namespace
}  // namespace kf::engine
