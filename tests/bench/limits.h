// What this machine can do at best, to report a kernel's share of it.
#pragma once

#include <cstdint>

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

// Bytes that no cache of the machine's core holds: 256 MiB.
inline constexpr int64_t kColdBytes = int64_t{256} << 20;

}  // namespace kf::bench
