#include "tools/client_lib/percentiles.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "kernels/core/status.h"

namespace kf::tools {

double PercentileOfSorted(const std::vector<double>& sorted, double percent) {
  KF_CHECK(!sorted.empty());
  const double rank =
      std::ceil(percent / 100.0 * static_cast<double>(sorted.size()));
  const size_t index = static_cast<size_t>(std::max(rank, 1.0)) - 1;
  return sorted[std::min(index, sorted.size() - 1)];
}

Summary Summarize(std::vector<double> values) {
  Summary out;
  if (values.empty()) return out;
  std::sort(values.begin(), values.end());
  out.count = values.size();
  out.mean = std::accumulate(values.begin(), values.end(), 0.0) /
             static_cast<double>(values.size());
  out.p50 = PercentileOfSorted(values, 50.0);
  out.p95 = PercentileOfSorted(values, 95.0);
  out.p99 = PercentileOfSorted(values, 99.0);
  out.max = values.back();
  return out;
}

}  // namespace kf::tools
