// The scheduler alone, with requests that grow: who takes pages, who loses
// them, and what a replay comes to.
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <map>
#include <utility>
#include <vector>

#include "engine/scheduler.h"
#include "kernels/core/noise.h"
#include "tests/testing/matchers.h"

namespace kf::engine {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::SizeIs;

constexpr int32_t kGrowthLayers = 3;
constexpr TimePoint kNow = TimePoint();

SchedulerLimits PoolOf(int64_t pages) {
  return {.pool_pages = pages,
          .workspace_tokens = 1000,
          .max_batch = 8,
          .layers = kGrowthLayers,
          .slice_tokens = 64,
          .call_rows = 128};
}

SchedulerEntry Growing(RequestId id,
                       int32_t prompt,
                       int32_t max_new,
                       int32_t rows = 1) {
  const GrowthPlan growth{.layers = kGrowthLayers,
                          .bounded_layers = 0,
                          .prompt_tokens = prompt,
                          .most_tokens = prompt + max_new + 1};
  return {.id = id,
          .priority = 0,
          .prompt_tokens = prompt,
          .rows = rows,
          .cache_pages = growth.Pages(rows, growth.most_tokens),
          .growth = growth};
}

SchedulerEntry Fixed(RequestId id, int64_t pages) {
  return {.id = id, .prompt_tokens = 1, .cache_pages = pages};
}

TEST(GrowthPlanTest, PromptPagesAreCommonAndBoundsCount) {
  GrowthPlan plan{.layers = 4,
                  .bounded_layers = 0,
                  .prompt_tokens = 40,
                  .most_tokens = 100};
  EXPECT_EQ(plan.Pages(1, 41), 3 * 4);
  EXPECT_EQ(plan.Pages(3, 41), (2 + 3 * 1) * 4);
  EXPECT_EQ(plan.Pages(3, 49), (2 + 3 * 2) * 4);
  EXPECT_EQ(plan.Pages(1, 1000), 7 * 4);  // ceil(100 / 16)
  plan = {.layers = 4,
          .bounded_layers = 2,
          .prompt_tokens = 270,
          .most_tokens = 301};
  EXPECT_EQ(plan.Pages(2, 301), 4 * (16 + 2 * 3) + 2 * (1 + 2 * 1));
}

// What is free is the page that each of the growing ones may need next.
TEST(SchedulerGrowthTest, ANewcomerLeavesRoomForAPageEach) {
  Scheduler scheduler(PoolOf(15));
  scheduler.Add(Growing(1, 15, 40));  // 3 pages now, 3 to come
  scheduler.Add(Growing(2, 15, 40));  // as many
  scheduler.Add(Fixed(3, 3));
  EXPECT_THAT(scheduler.Plan(kNow).admit, ElementsAre(1, 2, 3));
  Scheduler tight(PoolOf(14));
  tight.Add(Growing(1, 15, 40));
  tight.Add(Growing(2, 15, 40));
  tight.Add(Fixed(3, 3));
  EXPECT_THAT(tight.Plan(kNow).admit, ElementsAre(1, 2));
}

// Room for 4 pages a layer; a request needs as many at its end.
TEST(SchedulerGrowthTest, TheLatestGivesWayAndIsReplayed) {
  Scheduler scheduler(PoolOf(12));
  scheduler.Add(Growing(1, 15, 48));
  scheduler.Add(Growing(2, 15, 48));
  EXPECT_THAT(scheduler.Plan(kNow).admit, ElementsAre(1, 2));
  int decoded = 0;
  StepPlan plan = scheduler.Plan(kNow);
  for (; plan.preempt.empty(); plan = scheduler.Plan(kNow)) {
    EXPECT_THAT(plan.decode, ElementsAre(1, 2));
    ++decoded;
  }
  // Both have two pages a layer, room for 32 tokens: 17 of them new.
  EXPECT_EQ(decoded, 17);
  EXPECT_THAT(plan.preempt, ElementsAre(2));
  EXPECT_THAT(plan.decode, ElementsAre(1));
  EXPECT_THAT(plan.admit, IsEmpty());
  EXPECT_EQ(scheduler.running(), 1);
  // One that came later does not pass it: max_skips is 0.
  scheduler.Add(Fixed(3, 1));
  EXPECT_THAT(scheduler.Plan(kNow).admit, IsEmpty());
  scheduler.Finish(1);
  plan = scheduler.Plan(kNow);
  EXPECT_THAT(plan.admit, ElementsAre(2));  // and its next page: all 12
  // The prompt through its kernels, then what had been fed; 64 tokens' worth
  // of work in all.
  EXPECT_EQ(plan.prefill.size(), 3U);
  EXPECT_THAT(plan.decode, IsEmpty());
  ASSERT_THAT(plan.replay, SizeIs(3));
  int replayed = 0;
  for (const ReplayPiece& piece : plan.replay) {
    EXPECT_EQ(piece.id, 2U);
    EXPECT_LE(piece.tokens, 8);  // max_batch
    replayed += piece.tokens;
  }
  EXPECT_EQ(replayed, 17);
  EXPECT_THAT(scheduler.Plan(kNow).decode, ElementsAre(2));
}

// A prompt whose last row costs more than a step is all of the step.
TEST(SchedulerGrowthTest, AReplayTakesNothingWhereNothingIsLeft) {
  SchedulerLimits limits = PoolOf(25);
  limits.slice_tokens = 32;
  Scheduler scheduler(limits);
  scheduler.Add(Growing(1, 15, 100));
  scheduler.Add(Growing(2, 15, 100));
  while (scheduler.Plan(kNow).preempt.empty()) {
  }
  scheduler.Finish(1);
  int replayed = 0;
  const auto count = [&](const StepPlan& plan) {
    for (const ReplayPiece& piece : plan.replay) {
      EXPECT_GT(piece.tokens, 0);
      replayed += piece.tokens;
    }
  };
  count(scheduler.Plan(kNow));
  SchedulerEntry costly = Fixed(3, 1);
  costly.priority = 1;
  costly.logit_row_cost = 1000;
  scheduler.Add(costly);
  StepPlan plan = scheduler.Plan(kNow);
  for (; plan.decode.size() < 2; plan = scheduler.Plan(kNow)) count(plan);
  EXPECT_EQ(replayed, 49);  // to the end of four pages
}

TEST(SchedulerGrowthTest, TheLowestPriorityGivesWayFirst) {
  Scheduler scheduler(PoolOf(15));
  SchedulerEntry low = Growing(1, 15, 48);
  low.priority = -1;
  scheduler.Add(low);
  scheduler.Add(Growing(2, 15, 48));
  EXPECT_THAT(scheduler.Plan(kNow).admit, ElementsAre(2, 1));
  StepPlan plan = scheduler.Plan(kNow);
  while (plan.preempt.empty()) plan = scheduler.Plan(kNow);
  EXPECT_THAT(plan.preempt, ElementsAre(1));
}

// A small one passes a big one and is preempted: its client has a part of its
// answer, so it goes on before those that wait to begin, though they came
// earlier.
TEST(SchedulerGrowthTest, WhoHasRunComesBeforeWhoNeverDid) {
  SchedulerLimits limits = PoolOf(12);
  limits.max_skips = 1;
  Scheduler scheduler(limits);
  scheduler.Add(Growing(1, 15, 48));
  scheduler.Add(Fixed(2, 12));
  scheduler.Add(Growing(3, 15, 48));
  EXPECT_THAT(scheduler.Plan(kNow).admit, ElementsAre(1, 3));
  StepPlan plan = scheduler.Plan(kNow);
  while (plan.preempt.empty()) plan = scheduler.Plan(kNow);
  EXPECT_THAT(plan.preempt, ElementsAre(3));
  scheduler.Finish(1);
  EXPECT_THAT(scheduler.Plan(kNow).admit, ElementsAre(3));
  scheduler.Finish(3);
  EXPECT_THAT(scheduler.Plan(kNow).admit, ElementsAre(2));
}

// In its prefill, too: its prompt begins anew.
TEST(SchedulerGrowthTest, APromptGivesWay) {
  Scheduler scheduler(PoolOf(3 * 40));
  scheduler.Add(Growing(1, 15, 600));
  scheduler.Plan(kNow);
  for (int i = 0; i < 8; ++i) scheduler.Plan(kNow);
  scheduler.Add(Growing(2, 580, 2));  // 37 pages; 1 is left
  EXPECT_THAT(scheduler.Plan(kNow).admit, ElementsAre(2));
  // 580 x 3 rows at 64 x 3 a step are ten steps; 1 needs the rest before.
  int steps = 0;
  StepPlan plan = scheduler.Plan(kNow);
  for (; plan.preempt.empty(); plan = scheduler.Plan(kNow)) ++steps;
  EXPECT_LT(steps, 30);
  EXPECT_THAT(plan.preempt, ElementsAre(2));
  scheduler.Finish(1);
  plan = scheduler.Plan(kNow);
  EXPECT_THAT(plan.admit, ElementsAre(2));
  EXPECT_EQ(plan.prefill.front().layer, 0);
  EXPECT_EQ(plan.prefill.front().pieces.front().first_row, 0);
}

// Nothing of a fixed reservation is taken: the growing one waits for it.
TEST(SchedulerGrowthTest, AReservationIsNeverPreempted) {
  Scheduler scheduler(PoolOf(12));
  scheduler.Add(Growing(1, 15, 48));
  scheduler.Add(Fixed(2, 6));
  EXPECT_THAT(scheduler.Plan(kNow).admit, ElementsAre(1, 2));
  StepPlan plan = scheduler.Plan(kNow);
  while (plan.preempt.empty()) plan = scheduler.Plan(kNow);
  EXPECT_THAT(plan.preempt, ElementsAre(1));
  EXPECT_THAT(plan.decode, ElementsAre(2));
  EXPECT_THAT(scheduler.Plan(kNow).admit, IsEmpty());
  scheduler.Finish(2);
  EXPECT_THAT(scheduler.Plan(kNow).admit, ElementsAre(1));
}

TEST(SchedulerGrowthTest, APreemptedOneIsDroppedLikeAnother) {
  for (const bool cancel : {true, false}) {
    Scheduler scheduler(PoolOf(12));
    scheduler.Add(Growing(1, 15, 48));
    SchedulerEntry late = Growing(2, 15, 48);
    late.time_limit = kNow + std::chrono::seconds(5);
    scheduler.Add(late);
    scheduler.Plan(kNow);
    StepPlan plan = scheduler.Plan(kNow);
    while (plan.preempt.empty()) plan = scheduler.Plan(kNow);
    if (cancel) scheduler.Cancel(2);
    plan = scheduler.Plan(kNow + std::chrono::seconds(cancel ? 1 : 6));
    ASSERT_THAT(plan.drops, SizeIs(1));
    EXPECT_EQ(plan.drops[0].id, 2U);
    EXPECT_EQ(plan.drops[0].reason,
              cancel ? DropReason::kCancelled : DropReason::kTimeLimit);
    scheduler.Finish(1);
    EXPECT_TRUE(scheduler.idle());
  }
}

// Three samples of 40 tokens: two common pages a layer, and a third of each.
TEST(SchedulerGrowthTest, SamplesGrowTogetherAndGiveBackTheirShare) {
  Scheduler scheduler(PoolOf(3 * (2 + 3 * 2)));
  scheduler.Add(Growing(1, 40, 18, 3));
  EXPECT_THAT(scheduler.Plan(kNow).admit, ElementsAre(1));
  scheduler.Add(Fixed(2, 3));
  for (int i = 0; i < 8; ++i) {
    EXPECT_THAT(scheduler.Plan(kNow).admit, IsEmpty());
  }
  EXPECT_THAT(scheduler.Plan(kNow).preempt, IsEmpty());  // 49 tokens each
  scheduler.Shrink(1, /*rows=*/1, /*pages=*/0);
  EXPECT_THAT(scheduler.Plan(kNow).admit, ElementsAre(2));
  scheduler.Finish(2);
  scheduler.Finish(1);
  scheduler.Add(Fixed(3, 24));  // all
  EXPECT_THAT(scheduler.Plan(kNow).admit, ElementsAre(3));
}

// Random requests of all kinds against a small pool: whatever comes, each one
// ends; nobody holds what is not there; work stays within a slice.
TEST(SchedulerGrowthTest, EveryoneEndsAndNothingIsPromisedTwice) {
  struct Request {
    SchedulerEntry entry;
    int32_t max_new = 0;
    int32_t fed = 0;
    int32_t replay = 0;  // tokens left of it
    int32_t prompt_rows = 0;
    bool running = false;
    int admission = 0;  // the first one: its place among all
  };
  int preemptions = 0;
  for (uint32_t seed = 0; seed < 30; ++seed) {
    SchedulerLimits limits = PoolOf(60);
    limits.max_skips = static_cast<int32_t>(seed % 5);
    Scheduler scheduler(limits);
    std::map<RequestId, Request> all;
    uint32_t draws = seed << 16;
    const auto draw = [&](uint32_t below) {
      return static_cast<int32_t>(MixBits(++draws) % below);
    };
    RequestId last = 0;
    int step = 0;
    int admissions = 0;
    for (; step < 20000 && (last < 60 || !all.empty()); ++step) {
      while (last < 60 && draw(4) == 0) {
        Request r;
        r.max_new = 1 + draw(60);
        if (draw(3) == 0) {
          r.entry = Fixed(++last, 3 * (1 + draw(10)));
        } else {
          r.entry = Growing(++last, 1 + draw(100), r.max_new, 1 + draw(3));
        }
        r.entry.priority = draw(2);
        // Some cost more than a step.
        if (draw(4) == 0) r.entry.logit_row_cost = draw(300);
        if (r.entry.cache_pages > limits.pool_pages) continue;
        scheduler.Add(r.entry);
        all[last] = r;
      }
      const StepPlan plan = scheduler.Plan(kNow);
      for (const RequestId id : plan.preempt) {
        Request& r = all.at(id);
        ASSERT_TRUE(r.running && r.entry.growth);
        r.running = false;
        r.prompt_rows = 0;
        r.replay = r.fed;
        ++preemptions;
        // All that grow and stay come before it.
        for (const auto& [other_id, other] : all) {
          if (!other.running || !other.entry.growth) continue;
          if (std::count(plan.preempt.begin(), plan.preempt.end(), other_id)) {
            continue;
          }
          ASSERT_LT(std::make_pair(-other.entry.priority, other.admission),
                    std::make_pair(-r.entry.priority, r.admission));
        }
      }
      for (const RequestId id : plan.admit) {
        Request& r = all.at(id);
        r.running = true;
        if (r.admission == 0) r.admission = ++admissions;
      }
      std::vector<RequestId> ended;
      for (const RequestId id : plan.decode) {
        Request& r = all.at(id);
        ASSERT_TRUE(r.running && r.replay == 0);
        ASSERT_EQ(r.prompt_rows, r.entry.prompt_tokens * kGrowthLayers);
        if (++r.fed >= r.max_new - 1) ended.push_back(id);
      }
      int64_t work = 0;
      for (const PrefillCall& call : plan.prefill) {
        for (const PrefillPiece& piece : call.pieces) {
          ASSERT_GT(piece.rows, 0);
          all.at(piece.id).prompt_rows += piece.rows;
          work += piece.rows;
        }
      }
      for (const ReplayPiece& piece : plan.replay) {
        Request& r = all.at(piece.id);
        ASSERT_EQ(r.prompt_rows, r.entry.prompt_tokens * kGrowthLayers);
        ASSERT_GT(piece.tokens, 0);
        ASSERT_GE(r.replay, piece.tokens);
        ASSERT_LE(piece.tokens * r.entry.rows, limits.max_batch);
        r.replay -= piece.tokens;
        work += int64_t{piece.tokens} * r.entry.rows * kGrowthLayers;
      }
      ASSERT_EQ(work, plan.prefill_token_layers);
      ASSERT_LE(work, int64_t{limits.slice_tokens} * kGrowthLayers);
      int64_t pages = 0;
      for (const auto& [id, r] : all) {
        if (!r.running) continue;
        pages += r.entry.growth
                     ? r.entry.growth->Pages(
                           r.entry.rows, int64_t{r.entry.prompt_tokens} + r.fed)
                     : r.entry.cache_pages;
      }
      ASSERT_LE(pages, limits.pool_pages);
      for (const RequestId id : ended) {
        Request& r = all.at(id);
        if (r.entry.rows > 1 && draw(2) == 0) {
          scheduler.Shrink(id, 1, 0);
          --r.entry.rows;
          continue;
        }
        scheduler.Finish(id);
        all.erase(id);
      }
    }
    EXPECT_TRUE(scheduler.idle()) << seed;
    EXPECT_TRUE(all.empty()) << seed;
  }
  EXPECT_GT(preemptions, 80);
}

}  // namespace
}  // namespace kf::engine
