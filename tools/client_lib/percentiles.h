// Order statistics of a list of measurements.
#pragma once

#include <cstddef>
#include <vector>

namespace kf::tools {

// All values in the unit of the input; zero for an empty list.
struct Summary {
  size_t count = 0;
  double mean = 0.0;
  double p50 = 0.0;
  double p95 = 0.0;
  double p99 = 0.0;
  double max = 0.0;
};

// Nearest rank: the smallest value that at least `percent` of the values do not
// exceed, so the answer is always a measured one. `sorted` is ascending and not
// empty; percent in (0, 100].
double PercentileOfSorted(const std::vector<double>& sorted, double percent);

Summary Summarize(std::vector<double> values);

}  // namespace kf::tools
