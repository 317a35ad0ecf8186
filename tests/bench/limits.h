// What this machine can do at best, to report a kernel's share of it.
#pragma once

#include <chrono>
#include <cstdint>
#include <vector>

#include "kernels/core/thread_pool.h"
#include "kernels/cpu/simd_level.h"
#include "tests/bench/limits_kernels.h"

namespace kf::bench {

const cpu::LimitKernels& LimitKernelsOf(cpu::SimdLevel level);

// Of all the pool's threads together, the best of several short runs (the
// machine may be shared). Measured once per level and thread count.
struct Limits {
  double f32_flops = 0;   // per second
  double bf16_flops = 0;  // per second
  double read_bytes = 0;  // per second, from memory
};
const Limits& MeasuredLimits(cpu::SimdLevel level, ThreadPool& pool);

// Times of single calls; the median is what a call takes when nobody else
// interrupts it, which a mean on a shared machine is not.
class MedianTimer {
 public:
  void Start() { start_ = std::chrono::steady_clock::now(); }
  void Stop() {
    seconds_.push_back(
        std::chrono::duration<double>(std::chrono::steady_clock::now() - start_)
            .count());
  }
  // > 0 once something was timed.
  double MedianSeconds() const;

 private:
  std::chrono::steady_clock::time_point start_;
  std::vector<double> seconds_;
};

// Bytes that no cache of the machine's core holds: 256 MiB.
inline constexpr int64_t kColdBytes = int64_t{256} << 20;

}  // namespace kf::bench
