// Events per second over the last five seconds. Thread-compatible.
#pragma once

#include <array>
#include <chrono>
#include <cstdint>

#include "engine/clock.h"

namespace kf::engine {

class RateMeter {
 public:
  void Add(TimePoint now, int64_t events) {
    Bucket& bucket = At(now);
    bucket.events += events;
  }
  double PerSecond(TimePoint now) const {
    const int64_t newest = Tick(now);
    int64_t events = 0;
    for (const Bucket& bucket : buckets_) {
      if (bucket.tick > newest - kBuckets) events += bucket.events;
    }
    return static_cast<double>(events) / (kBuckets * kSecondsPerTick);
  }

 private:
  static constexpr int64_t kBuckets = 20;
  static constexpr double kSecondsPerTick = 0.25;
  struct Bucket {
    int64_t tick = INT64_MIN / 2;
    int64_t events = 0;
  };
  static int64_t Tick(TimePoint now) {
    return now.time_since_epoch() / std::chrono::milliseconds(250);
  }
  // The bucket of `now`, emptied if an older one had its place.
  Bucket& At(TimePoint now) {
    const int64_t tick = Tick(now);
    Bucket& bucket = buckets_[static_cast<size_t>(tick % kBuckets)];
    if (bucket.tick != tick) bucket = {.tick = tick, .events = 0};
    return bucket;
  }

  std::array<Bucket, kBuckets> buckets_;
};

}  // namespace kf::engine
