#include "tools/sim/statistics.h"

#include <gtest/gtest.h>

#include <vector>

namespace kf::sim {
namespace {

TEST(DurationHistogramTest, PercentilesWithinAHundredthOfTheList) {
  DurationHistogram histogram;
  std::vector<double> list;
  double seconds = 3e-6;
  for (int i = 0; i < 2000; ++i, seconds *= 1.007) {
    histogram.Add(seconds);
    list.push_back(seconds);
  }
  const tools::Summary want = tools::Summarize(list);
  const tools::Summary got = histogram.Summarize();
  EXPECT_EQ(got.count, want.count);
  EXPECT_NEAR(got.mean, want.mean, 1e-9 * want.mean);
  EXPECT_NEAR(got.p50, want.p50, 0.01 * want.p50);
  EXPECT_NEAR(got.p95, want.p95, 0.01 * want.p95);
  EXPECT_NEAR(got.p99, want.p99, 0.01 * want.p99);
  EXPECT_EQ(got.max, want.max);
}

TEST(DurationHistogramTest, CountsAndEdges) {
  DurationHistogram histogram;
  EXPECT_EQ(histogram.Summarize().count, 0U);
  histogram.Add(0.0, 99);
  histogram.Add(5.0);
  const tools::Summary got = histogram.Summarize();
  EXPECT_EQ(got.count, 100U);
  EXPECT_EQ(got.p99, 0.0);
  EXPECT_EQ(got.max, 5.0);
  EXPECT_DOUBLE_EQ(got.mean, 0.05);
}

}  // namespace
}  // namespace kf::sim
