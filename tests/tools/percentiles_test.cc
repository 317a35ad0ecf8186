#include "tools/client_lib/percentiles.h"

#include <gtest/gtest.h>

#include <vector>

namespace kf::tools {
namespace {

TEST(Percentiles, AreMeasuredValuesByNearestRank) {
  std::vector<double> values;
  for (int i = 1; i <= 200; ++i) values.push_back(i);
  EXPECT_EQ(PercentileOfSorted(values, 50.0), 100.0);
  EXPECT_EQ(PercentileOfSorted(values, 95.0), 190.0);
  EXPECT_EQ(PercentileOfSorted(values, 99.0), 198.0);
  EXPECT_EQ(PercentileOfSorted(values, 100.0), 200.0);
  EXPECT_EQ(PercentileOfSorted(values, 0.01), 1.0);
}

TEST(Percentiles, OfOneValueAreThatValue) {
  EXPECT_EQ(PercentileOfSorted({7.0}, 1.0), 7.0);
  EXPECT_EQ(PercentileOfSorted({7.0}, 99.0), 7.0);
}

TEST(Summarize, SortsAndAverages) {
  const Summary summary = Summarize({9.0, 1.0, 5.0});
  EXPECT_EQ(summary.count, 3U);
  EXPECT_EQ(summary.mean, 5.0);
  EXPECT_EQ(summary.p50, 5.0);
  EXPECT_EQ(summary.p95, 9.0);
  EXPECT_EQ(summary.max, 9.0);
}

TEST(Summarize, NothingIsZero) {
  const Summary summary = Summarize({});
  EXPECT_EQ(summary.count, 0U);
  EXPECT_EQ(summary.max, 0.0);
}

}  // namespace
}  // namespace kf::tools
