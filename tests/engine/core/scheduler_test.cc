// The scheduler alone: no model, no thread, and time is a number.
#include "engine/scheduler.h"

#include <gtest/gtest.h>

#include <chrono>
#include <map>
#include <string>
#include <vector>

#include "kernels/backend.h"
#include "kernels/core/noise.h"
#include "tests/testing/matchers.h"

namespace kf::engine {
namespace {

using std::chrono::seconds;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

constexpr SchedulerLimits kLimits{.pool_pages = 100,
                                  .workspace_tokens = 1000,
                                  .max_batch = 4,
                                  .layers = 3,
                                  .slice_tokens = 64,
                                  .call_rows = 128};

SchedulerEntry Entry(RequestId id, int32_t tokens = 10, int64_t pages = 10) {
  return {.id = id,
          .priority = 0,
          .prompt_tokens = tokens,
          .cache_pages = pages,
          .logit_row_cost = 0,
          .deadline = std::nullopt,
          .time_limit = std::nullopt};
}

TimePoint At(int s) { return TimePoint() + seconds(s); }

std::string Describe(const std::vector<PrefillCall>& calls) {
  std::string text;
  for (const PrefillCall& call : calls) {
    text += "L" + std::to_string(call.layer) + ":";
    for (const PrefillPiece& p : call.pieces) {
      text += " " + std::to_string(p.id) + "[" + std::to_string(p.first_row) +
              "," + std::to_string(p.first_row + p.rows) + ")";
    }
    text += "; ";
  }
  return text;
}

TEST(SchedulerTest, ShortPromptsShareTheirSlices) {
  Scheduler scheduler(kLimits);
  scheduler.Add(Entry(1, 20));
  scheduler.Add(Entry(2, 30));
  const StepPlan plan = scheduler.Plan(At(0));
  EXPECT_THAT(plan.admit, ElementsAre(1, 2));
  EXPECT_EQ(Describe(plan.prefill),
            "L0: 1[0,20) 2[0,30); L1: 1[0,20) 2[0,30); L2: 1[0,20) 2[0,30); ");
  EXPECT_EQ(plan.prefill_token_layers, 150);
  EXPECT_THAT(plan.decode, IsEmpty());
  EXPECT_THAT(scheduler.Plan(At(0)).decode, ElementsAre(1, 2));
}

SchedulerEntry Several(RequestId id, int32_t rows, int64_t pages) {
  SchedulerEntry entry = Entry(id, 10, pages);
  entry.rows = rows;
  return entry;
}

// max_batch is 4: a request waits until there are rows for all its sequences.
TEST(SchedulerTest, SequencesOfARequestAreAdmittedTogether) {
  Scheduler scheduler(kLimits);
  scheduler.Add(Several(1, 3, 30));
  scheduler.Add(Several(2, 2, 20));
  scheduler.Add(Several(3, 1, 10));
  EXPECT_THAT(scheduler.Plan(At(0)).admit, ElementsAre(1));
  EXPECT_THAT(scheduler.Plan(At(0)).admit, IsEmpty());
  EXPECT_EQ(scheduler.running(), 1);
  // One of the three ends: now there is room for two.
  scheduler.Shrink(1, /*rows=*/1, /*pages=*/10);
  EXPECT_THAT(scheduler.Plan(At(0)).admit, ElementsAre(2));
  EXPECT_THAT(scheduler.Plan(At(0)).admit, IsEmpty());
  scheduler.Shrink(1, 1, 10);
  EXPECT_THAT(scheduler.Plan(At(0)).admit, ElementsAre(3));
  for (RequestId id = 1; id <= 3; ++id) scheduler.Finish(id);
  // All rows are free again, and all pages.
  scheduler.Add(Several(4, 4, 100));
  EXPECT_THAT(scheduler.Plan(At(0)).admit, ElementsAre(4));
}

// 100 pages in all; rows there are.
TEST(SchedulerTest, ASequenceThatEndsFreesItsPages) {
  Scheduler scheduler(kLimits);
  scheduler.Add(Several(1, 3, 90));
  scheduler.Add(Several(2, 1, 40));
  EXPECT_THAT(scheduler.Plan(At(0)).admit, ElementsAre(1));
  scheduler.Shrink(1, 0, 29);  // after the prompt, say
  EXPECT_THAT(scheduler.Plan(At(0)).admit, IsEmpty());
  scheduler.Shrink(1, 1, 1);
  EXPECT_THAT(scheduler.Plan(At(0)).admit, ElementsAre(2));
}

TEST(SchedulerTest, ALongPromptIsCutAtRowTiles) {
  Scheduler scheduler(kLimits);
  scheduler.Add(Entry(1, 150));
  // 64 x 3 = 192 token-layers a step, 128 rows a call.
  EXPECT_EQ(Describe(scheduler.Plan(At(0)).prefill),
            "L0: 1[0,128); L0: 1[128,150); L1: 1[0,32); ");
  EXPECT_EQ(Describe(scheduler.Plan(At(0)).prefill),
            "L1: 1[32,150); L2: 1[0,64); ");
  EXPECT_EQ(Describe(scheduler.Plan(At(0)).prefill), "L2: 1[64,150); ");
  EXPECT_THAT(scheduler.Plan(At(0)).decode, ElementsAre(1));
}

TEST(SchedulerTest, EveryRowOfEveryLayerRunsOnceAndInOrder) {
  SchedulerLimits limits = kLimits;
  limits.slice_tokens = 40;
  Scheduler scheduler(limits);
  std::map<RequestId, int32_t> tokens;
  std::map<RequestId, std::pair<int32_t, int32_t>> next;  // layer, row
  RequestId id = 0;
  for (int step = 0; step < 1000; ++step) {
    if (step < 200 && step % 3 == 0) {
      ++id;
      tokens[id] =
          1 + static_cast<int32_t>(MixBits(static_cast<uint32_t>(id)) % 400);
      scheduler.Add(Entry(id, tokens[id], 1));
    }
    const StepPlan plan = scheduler.Plan(At(step));
    int64_t work = 0;
    for (const PrefillCall& call : plan.prefill) {
      int32_t rows = 0;
      for (const PrefillPiece& p : call.pieces) {
        auto& [layer, row] = next[p.id];
        ASSERT_EQ(layer, call.layer);
        ASSERT_EQ(row, p.first_row);
        row += p.rows;
        rows += p.rows;
        ASSERT_TRUE(row == tokens[p.id] || row % kPromptRowTile == 0);
        if (row == tokens[p.id]) {
          row = 0;
          ++layer;
        }
      }
      ASSERT_LE(rows, limits.call_rows);
      work += rows;
    }
    ASSERT_EQ(work, plan.prefill_token_layers);
    ASSERT_LE(work, int64_t{limits.slice_tokens} * limits.layers);
    for (const RequestId done : plan.decode) {
      ASSERT_EQ(next[done], (std::pair<int32_t, int32_t>{limits.layers, 0}));
      scheduler.Finish(done);
    }
  }
  EXPECT_TRUE(scheduler.idle());
  EXPECT_EQ(next.size(), id);
}

// Logits of every row: a row of the last layer costs 1 + 5.
TEST(SchedulerTest, RowsWithLogitsCountAsTheWorkTheyAre) {
  Scheduler scheduler(kLimits);
  SchedulerEntry entry = Entry(1, 100);
  entry.logit_row_cost = 5;
  scheduler.Add(entry);
  // 192 units of work a step, of which 200 - 192 go into the next.
  EXPECT_EQ(Describe(scheduler.Plan(At(0)).prefill),
            "L0: 1[0,100); L1: 1[0,64); ");
  // 36 for the rest of layer 1, and 156 / 6 = 26 rows: no whole tile.
  EXPECT_EQ(Describe(scheduler.Plan(At(0)).prefill), "L1: 1[64,100); ");
  const StepPlan plan = scheduler.Plan(At(0));
  EXPECT_EQ(Describe(plan.prefill), "L2: 1[0,32); ");
  EXPECT_EQ(plan.prefill_token_layers, 32);
  EXPECT_EQ(Describe(scheduler.Plan(At(0)).prefill), "L2: 1[32,64); ");
  EXPECT_EQ(Describe(scheduler.Plan(At(0)).prefill), "L2: 1[64,96); ");
  EXPECT_EQ(Describe(scheduler.Plan(At(0)).prefill), "L2: 1[96,100); ");
  EXPECT_THAT(scheduler.Plan(At(0)).decode, ElementsAre(1));
}

TEST(SchedulerTest, ATileThatCostsMoreThanAStepStillRuns) {
  Scheduler scheduler(kLimits);
  SchedulerEntry entry = Entry(1, 40);
  entry.logit_row_cost = 1000;
  scheduler.Add(entry);
  EXPECT_EQ(Describe(scheduler.Plan(At(0)).prefill),
            "L0: 1[0,40); L1: 1[0,40); ");
  EXPECT_EQ(Describe(scheduler.Plan(At(0)).prefill), "L2: 1[0,32); ");
  EXPECT_EQ(Describe(scheduler.Plan(At(0)).prefill), "L2: 1[32,40); ");
}

// It is all of its step, though its prompt ends with it.
TEST(SchedulerTest, ATileThatCostsMoreThanAStepLeavesNothing) {
  Scheduler scheduler(kLimits);
  SchedulerEntry entry = Entry(1, 20);
  entry.logit_row_cost = 1000;
  scheduler.Add(entry);
  scheduler.Add(Entry(2, 200));
  EXPECT_EQ(Describe(scheduler.Plan(At(0)).prefill),
            "L0: 1[0,20); L1: 1[0,20); ");
  EXPECT_EQ(Describe(scheduler.Plan(At(0)).prefill), "L2: 1[0,20); ");
  EXPECT_EQ(Describe(scheduler.Plan(At(0)).prefill),
            "L0: 2[0,128); L0: 2[128,192); ");
}

// The rest of a step is for those whose rows cost little.
TEST(SchedulerTest, RowsWithLogitsJoinACallOnlyIfTheirWorkFits) {
  Scheduler scheduler(kLimits);
  scheduler.Add(Entry(1, 20));
  SchedulerEntry costly = Entry(2, 20);
  costly.logit_row_cost = 9;
  scheduler.Add(costly);
  scheduler.Add(Entry(3, 20));
  // 120 of 192 are used; 20 rows of 1 and 20 of 10 in layer 2: not all fit.
  EXPECT_EQ(Describe(scheduler.Plan(At(0)).prefill),
            "L0: 1[0,20) 2[0,20) 3[0,20); L1: 1[0,20) 2[0,20) 3[0,20); "
            "L2: 1[0,20) 3[0,20); ");
  EXPECT_EQ(Describe(scheduler.Plan(At(0)).prefill), "L2: 2[0,20); ");
}

TEST(SchedulerTest, AdmissionWaitsForPages) {
  Scheduler scheduler(kLimits);
  scheduler.Add(Entry(1, 10, 60));
  scheduler.Add(Entry(2, 10, 41));
  scheduler.Add(Entry(3, 10, 1));  // fits, but nobody passes
  EXPECT_THAT(scheduler.Plan(At(0)).admit, ElementsAre(1));
  EXPECT_THAT(scheduler.Plan(At(1)).admit, IsEmpty());
  scheduler.Finish(1);
  EXPECT_THAT(scheduler.Plan(At(2)).admit, ElementsAre(2, 3));
}

// Scope MODEL: what only the prompt needed comes back at its end.
TEST(SchedulerTest, PagesGivenBackLetTheNextOneIn) {
  Scheduler scheduler(kLimits);
  scheduler.Add(Entry(1, 10, 100));
  scheduler.Add(Entry(2, 10, 60));
  EXPECT_THAT(scheduler.Plan(At(0)).admit, ElementsAre(1));
  scheduler.Shrink(1, 0, 59);
  EXPECT_THAT(scheduler.Plan(At(0)).admit, IsEmpty());
  scheduler.Shrink(1, 0, 1);
  EXPECT_THAT(scheduler.Plan(At(0)).admit, ElementsAre(2));
  scheduler.Add(Entry(3, 10, 41));
  EXPECT_THAT(scheduler.Plan(At(0)).admit, IsEmpty());
  scheduler.Finish(1);  // 40 of its own were left
  scheduler.Finish(2);
  EXPECT_THAT(scheduler.Plan(At(0)).admit, ElementsAre(3));
}

Scheduler SkippingScheduler(int32_t max_skips) {
  SchedulerLimits limits = kLimits;
  limits.max_skips = max_skips;
  return Scheduler(limits);
}

// The second does not fit beside the first, whatever may pass it.
TEST(SchedulerTest, ARequestIsPassedOnlySoOften) {
  Scheduler scheduler = SkippingScheduler(2);
  scheduler.Add(Entry(1, 10, 60));
  scheduler.Add(Entry(2, 10, 41));
  for (RequestId id = 3; id <= 6; ++id) scheduler.Add(Entry(id, 10, 1));
  EXPECT_THAT(scheduler.Plan(At(0)).admit, ElementsAre(1, 3, 4));
  scheduler.Finish(3);
  scheduler.Finish(4);
  EXPECT_THAT(scheduler.Plan(At(1)).admit, IsEmpty());
  scheduler.Finish(1);
  EXPECT_THAT(scheduler.Plan(At(2)).admit, ElementsAre(2, 5, 6));
}

// Each of those that wait counts for itself, and a lower priority's request is
// one that passes, too.
TEST(SchedulerTest, ALowerPriorityPassesOnlySoOften) {
  Scheduler scheduler = SkippingScheduler(2);
  scheduler.Add(Entry(1, 10, 60));
  EXPECT_THAT(scheduler.Plan(At(0)).admit, ElementsAre(1));
  SchedulerEntry low = Entry(2, 10, 1);
  low.priority = -1;
  scheduler.Add(low);
  scheduler.Add(Entry(3, 10, 50));
  EXPECT_THAT(scheduler.Plan(At(1)).admit, ElementsAre(2));  // passes 3
  scheduler.Add(Entry(4, 10, 50));
  low.id = 5;
  scheduler.Add(low);
  EXPECT_THAT(scheduler.Plan(At(2)).admit, ElementsAre(5));  // passes 3 and 4
  scheduler.Finish(2);
  scheduler.Finish(5);
  low.id = 6;
  scheduler.Add(low);
  EXPECT_THAT(scheduler.Plan(At(3)).admit, IsEmpty());
  // Once 3 is in, 4 may be passed once more.
  scheduler.Finish(1);
  SchedulerEntry high = Entry(7, 10, 40);
  high.priority = 1;
  scheduler.Add(high);
  EXPECT_THAT(scheduler.Plan(At(4)).admit, ElementsAre(7, 3, 6));
  low.id = 8;
  scheduler.Add(low);
  EXPECT_THAT(scheduler.Plan(At(5)).admit, IsEmpty());
}

// Small requests come for ever; the big one is served nevertheless.
TEST(SchedulerTest, ABigRequestDoesNotStarve) {
  Scheduler scheduler = SkippingScheduler(16);
  RequestId next = 2;
  scheduler.Add(Entry(next++, 1, 50));
  scheduler.Plan(At(0));
  scheduler.Add(Entry(1, 1, 100));
  std::vector<RequestId> running = {2};
  bool served = false;
  for (int step = 1; step < 100 && !served; ++step) {
    scheduler.Add(Entry(next++, 1, 50));
    const StepPlan plan = scheduler.Plan(At(step));
    running.insert(running.end(), plan.admit.begin(), plan.admit.end());
    served = running.back() == 1;
    if (!running.empty() && !served) {
      scheduler.Finish(running.front());
      running.erase(running.begin());
    }
  }
  EXPECT_TRUE(served);
  EXPECT_EQ(scheduler.running(), 1);
}

TEST(SchedulerTest, AdmissionWaitsForTheWorkspaceUntilThePromptIsDone) {
  Scheduler scheduler(kLimits);
  scheduler.Add(Entry(1, 600));
  scheduler.Add(Entry(2, 500));
  EXPECT_THAT(scheduler.Plan(At(0)).admit, ElementsAre(1));
  int steps = 1;
  while (scheduler.Plan(At(0)).admit.empty()) ++steps;
  // 600 x 3 token-layers at 192 a step.
  EXPECT_EQ(steps, 10);
}

TEST(SchedulerTest, AdmissionWaitsForABatchPlace) {
  Scheduler scheduler(kLimits);
  for (RequestId id = 1; id <= 6; ++id) scheduler.Add(Entry(id, 1, 1));
  EXPECT_THAT(scheduler.Plan(At(0)).admit, ElementsAre(1, 2, 3, 4));
  EXPECT_EQ(scheduler.running(), 4);
  EXPECT_THAT(scheduler.Plan(At(0)).decode, ElementsAre(1, 2, 3, 4));
  scheduler.Finish(2);
  EXPECT_THAT(scheduler.Plan(At(0)).admit, ElementsAre(5));
  EXPECT_THAT(scheduler.Plan(At(0)).decode, ElementsAre(1, 3, 4, 5));
}

TEST(SchedulerTest, HigherPriorityFirstThenArrival) {
  Scheduler scheduler(kLimits);
  for (RequestId id = 1; id <= 4; ++id) {
    SchedulerEntry entry = Entry(id, 10, 50);
    entry.priority = id >= 3 ? 1 : -1;
    scheduler.Add(entry);
  }
  EXPECT_THAT(scheduler.Plan(At(0)).admit, ElementsAre(3, 4));
  scheduler.Finish(4);
  scheduler.Finish(3);
  EXPECT_THAT(scheduler.Plan(At(0)).admit, ElementsAre(1, 2));
}

TEST(SchedulerTest, AHigherPriorityPromptRunsAheadOfALowerOne) {
  Scheduler scheduler(kLimits);
  scheduler.Add(Entry(1, 600));
  scheduler.Plan(At(0));
  SchedulerEntry urgent = Entry(2, 20);
  urgent.priority = 5;
  scheduler.Add(urgent);
  const std::string calls = Describe(scheduler.Plan(At(0)).prefill);
  EXPECT_EQ(calls.substr(0, 8), "L0: 2[0,");
  EXPECT_THAT(scheduler.Plan(At(0)).decode, ElementsAre(2));
}

TEST(SchedulerTest, DropsInEveryState) {
  Scheduler scheduler(kLimits);
  scheduler.Add(Entry(1, 1, 10));    // will decode
  scheduler.Add(Entry(2, 900, 80));  // in prefill
  scheduler.Add(Entry(3, 1, 90));    // queued
  EXPECT_THAT(scheduler.Plan(At(0)).admit, ElementsAre(1, 2));
  EXPECT_THAT(scheduler.Plan(At(0)).decode, ElementsAre(1));
  for (const RequestId id : {1U, 2U, 3U, 99U}) scheduler.Cancel(id);
  const StepPlan plan = scheduler.Plan(At(0));
  EXPECT_EQ(plan.drops.size(), 3U);
  EXPECT_THAT(plan.decode, IsEmpty());
  EXPECT_THAT(plan.prefill, IsEmpty());
  EXPECT_TRUE(scheduler.idle());
  // All room is back.
  scheduler.Add(Entry(4, 1000, 100));
  EXPECT_THAT(scheduler.Plan(At(0)).admit, ElementsAre(4));
}

TEST(SchedulerTest, DeadlineBeatsTimeLimitAndEitherDropsOnTime) {
  Scheduler scheduler(kLimits);
  SchedulerEntry both = Entry(1);
  both.deadline = At(5);
  both.time_limit = At(5);
  SchedulerEntry limited = Entry(2);
  limited.time_limit = At(6);
  scheduler.Add(both);
  scheduler.Add(limited);
  EXPECT_THAT(scheduler.Plan(At(4)).drops, IsEmpty());
  const StepPlan at5 = scheduler.Plan(At(5));
  ASSERT_EQ(at5.drops.size(), 1U);
  EXPECT_EQ(at5.drops[0].id, 1U);
  EXPECT_EQ(at5.drops[0].reason, DropReason::kDeadline);
  const StepPlan at7 = scheduler.Plan(At(7));
  ASSERT_EQ(at7.drops.size(), 1U);
  EXPECT_EQ(at7.drops[0].reason, DropReason::kTimeLimit);
}

// One drop, or one end, does not make the others' times forgotten.
TEST(SchedulerTest, EachTimeCountsWhateverEndedBefore) {
  Scheduler scheduler(kLimits);
  for (RequestId id = 1; id <= 3; ++id) {
    SchedulerEntry running = Entry(id);
    running.time_limit = At(10 * static_cast<int>(id));
    scheduler.Add(running);
  }
  SchedulerEntry waiting = Entry(4);
  waiting.rows = kLimits.max_batch;
  waiting.deadline = At(40);
  scheduler.Add(waiting);
  scheduler.Plan(At(0));
  const auto dropped = [&](int at) {
    std::vector<RequestId> ids;
    for (const auto& drop : scheduler.Plan(At(at)).drops) {
      ids.push_back(drop.id);
    }
    return ids;
  };
  EXPECT_THAT(dropped(9), IsEmpty());
  EXPECT_THAT(dropped(10), ElementsAre(1));
  scheduler.Finish(2);
  EXPECT_THAT(dropped(29), IsEmpty());
  EXPECT_THAT(dropped(30), ElementsAre(3));
  EXPECT_THAT(dropped(39), IsEmpty());  // 4 runs now
  EXPECT_THAT(dropped(40), ElementsAre(4));
  EXPECT_TRUE(scheduler.idle());
}

// The caller's own deadline makes it cancel as well.
TEST(SchedulerTest, DeadlineBeatsCancel) {
  Scheduler scheduler(kLimits);
  SchedulerEntry late = Entry(1);
  late.deadline = At(5);
  scheduler.Add(late);
  scheduler.Cancel(1);
  const StepPlan plan = scheduler.Plan(At(5));
  ASSERT_EQ(plan.drops.size(), 1U);
  EXPECT_EQ(plan.drops[0].reason, DropReason::kDeadline);
  // Before it, a cancel is a cancel.
  late.id = 2;
  scheduler.Add(late);
  scheduler.Cancel(2);
  const StepPlan early = scheduler.Plan(At(4));
  ASSERT_EQ(early.drops.size(), 1U);
  EXPECT_EQ(early.drops[0].reason, DropReason::kCancelled);
}

TEST(SchedulerTest, ACancelledHeadLetsTheNextOneIn) {
  Scheduler scheduler(kLimits);
  scheduler.Add(Entry(1, 10, 60));
  scheduler.Add(Entry(2, 10, 60));
  scheduler.Add(Entry(3, 10, 40));
  EXPECT_THAT(scheduler.Plan(At(0)).admit, ElementsAre(1));
  scheduler.Cancel(2);
  EXPECT_THAT(scheduler.Plan(At(0)).admit, ElementsAre(3));
}

TEST(QueueBoundTest, BoundsRequestsAndTokens) {
  QueueBound bound(2, 100);
  EXPECT_THAT(bound.Add(60), testing::IsOk());
  EXPECT_THAT(bound.Add(41),
              testing::StatusIs(absl::StatusCode::kResourceExhausted,
                                "60 prompt tokens wait, 41 more would pass "
                                "max_queue_tokens, 100"));
  EXPECT_EQ(bound.tokens(), 60);
  EXPECT_THAT(bound.Add(40), testing::IsOk());
  EXPECT_THAT(bound.Add(0),
              testing::StatusIs(absl::StatusCode::kResourceExhausted,
                                "2 requests wait, max_queue_requests is 2"));
  bound.Remove(2, 100);
  EXPECT_EQ(bound.requests(), 0);
  // Alone, any prompt may wait: it would never come in otherwise.
  EXPECT_THAT(bound.Add(101), testing::IsOk());
}

}  // namespace
}  // namespace kf::engine
