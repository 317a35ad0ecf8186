#include "engine/prefill_pacer.h"

#include <gtest/gtest.h>

#include <chrono>

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

}  // namespace
}  // namespace kf::engine
