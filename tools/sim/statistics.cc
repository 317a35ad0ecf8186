#include "tools/sim/statistics.h"

#include <algorithm>
#include <cmath>

namespace kf::sim {
namespace {

// Buckets begin at a microsecond; below, there is one for all.
constexpr double kLeastSeconds = 1e-6;
constexpr double kBucketRatio = 1.01;

size_t BucketOf(double seconds) {
  if (seconds < kLeastSeconds) return 0;
  return 1 + static_cast<size_t>(std::log(seconds / kLeastSeconds) /
                                 std::log(kBucketRatio));
}

double MiddleOf(size_t bucket) {
  if (bucket == 0) return 0.0;
  return kLeastSeconds *
         std::pow(kBucketRatio, static_cast<double>(bucket) - 0.5);
}

}  // namespace

void DurationHistogram::Add(double seconds, int64_t count) {
  if (seconds != last_seconds_) {
    last_seconds_ = seconds;
    last_bucket_ = BucketOf(seconds);
    if (last_bucket_ >= counts_.size()) counts_.resize(last_bucket_ + 1);
  }
  counts_[last_bucket_] += count;
  total_ += count;
  sum_ += seconds * static_cast<double>(count);
  max_ = std::max(max_, seconds);
}

tools::Summary DurationHistogram::Summarize() const {
  tools::Summary summary;
  if (total_ == 0) return summary;
  const auto percentile = [&](double percent) {
    // Nearest rank, as tools::PercentileOfSorted.
    const double share = percent / 100.0 * static_cast<double>(total_);
    const auto rank =
        std::max<int64_t>(static_cast<int64_t>(std::ceil(share)), 1);
    int64_t seen = 0;
    for (size_t bucket = 0; bucket < counts_.size(); ++bucket) {
      seen += counts_[bucket];
      if (seen >= rank) return std::min(MiddleOf(bucket), max_);
    }
    return max_;
  };
  summary.count = static_cast<size_t>(total_);
  summary.mean = sum_ / static_cast<double>(total_);
  summary.p50 = percentile(50.0);
  summary.p95 = percentile(95.0);
  summary.p99 = percentile(99.0);
  summary.max = max_;
  return summary;
}

}  // namespace kf::sim
