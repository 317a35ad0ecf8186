// The only time source of the engine, so that tests can own time.
#pragma once

#include <chrono>

namespace kf::engine {

using Duration = std::chrono::nanoseconds;
using TimePoint = std::chrono::time_point<std::chrono::steady_clock, Duration>;

inline double ToMilliseconds(Duration d) {
  return std::chrono::duration<double, std::milli>(d).count();
}
inline double ToSeconds(Duration d) {
  return std::chrono::duration<double>(d).count();
}

class Clock {
 public:
  virtual ~Clock() = default;
  virtual TimePoint Now() const = 0;  // monotonic; thread-safe
};

class SteadyClock final : public Clock {
 public:
  TimePoint Now() const override { return std::chrono::steady_clock::now(); }
};

}  // namespace kf::engine
