// How much prompt work a step may take beside running streams, so that these
// wait for about as long as they may and no longer: measured on the machine as
// it is at the time, with its other load.
//
// Thread-compatible.
#pragma once

#include <cstdint>

#include "engine/clock.h"

namespace kf::engine {

class PrefillPacer {
 public:
  // Of a step's prompt work; zero: no bound.
  explicit PrefillPacer(Duration most) : most_(ToSeconds(most)) {}

  // Units of work that take about as long, >= 1; kUnbounded without a bound, or
  // before any work has been seen.
  int64_t Work() const;
  // A step's work took `seconds`. The mean over the last few counts, each by
  // its work: small steps say little of larger ones, since every call costs
  // something by itself.
  void Observe(int64_t work, double seconds);

  static constexpr int64_t kUnbounded = INT64_MAX;

 private:
  const double most_;
  double work_ = 0.0;  // of the last few steps, and their time
  double seconds_ = 0.0;
};

}  // namespace kf::engine
