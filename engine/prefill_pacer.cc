#include "engine/prefill_pacer.h"

#include <algorithm>

namespace kf::engine {
namespace {

// Of what has been seen, at a step as long as the bound.
constexpr double kForget = 0.5;

}  // namespace

int64_t PrefillPacer::Work() const {
  if (most_ <= 0.0 || seconds_ <= 0.0) return kUnbounded;
  const double work = most_ * work_ / seconds_;
  if (work >= 1e18) return kUnbounded;
  return std::max<int64_t>(1, static_cast<int64_t>(work));
}

void PrefillPacer::Observe(int64_t work, double seconds) {
  if (most_ <= 0.0 || work <= 0 || !(seconds > 0.0)) return;
  const double keep = 1.0 - kForget * std::min(1.0, seconds / most_);
  work_ = work_ * keep + static_cast<double>(work);
  seconds_ = seconds_ * keep + seconds;
}

}  // namespace kf::engine
