// Device code: a warp's maxima and running sums (its sums: block_reduce.cuh).
#pragma once

#include <cstdint>

#include "kernels/cuda/block_reduce.cuh"
#include "kernels/cuda/gpu.h"

namespace kf::cuda {

// Every lane gets the result. NaN is passed over, as fmaxf does.
__device__ inline float WarpMax(float x) {
  for (int distance = kWarp / 2; distance > 0; distance /= 2) {
    x = fmaxf(x, __shfl_xor_sync(kAllLanes, x, distance));
  }
  return x;
}

// The sum of `value` over the lanes below this one.
__device__ inline int32_t WarpSumBelow(int32_t value, int32_t lane) {
  int32_t sum = value;
  for (unsigned distance = 1; distance < kWarp; distance *= 2) {
    const int32_t below = __shfl_up_sync(kAllLanes, sum, distance);
    if (lane >= static_cast<int32_t>(distance)) sum += below;
  }
  return sum - value;
}

}  // namespace kf::cuda
