// Sums over a warp and over a block, in a fixed order. Device code.
#pragma once

#include "kernels/cuda/gpu.h"

namespace kf::cuda {

inline constexpr int kWarp = 32;
inline constexpr uint32_t kAllLanes = 0xFFFFFFFFU;

// The sum of all lanes, the same bits in each.
template <typename T>
__device__ __forceinline__ T WarpSum(T x) {
  for (int distance = kWarp / 2; distance > 0; distance /= 2) {
    x += __shfl_xor_sync(kAllLanes, x, distance);
  }
  return x;
}

// The sum over a block of up to 32 whole warps, the same bits in each thread.
// All threads call it; `scratch` is shared memory for 32 values, and free to be
// used again when the call returns.
template <typename T>
__device__ __forceinline__ T BlockSum(T x, T* scratch) {
  const unsigned warps = blockDim.x / kWarp;
  x = WarpSum(x);
  if (threadIdx.x % kWarp == 0) scratch[threadIdx.x / kWarp] = x;
  __syncthreads();
  T sum = scratch[0];
  for (unsigned w = 1; w < warps; ++w) sum += scratch[w];
  __syncthreads();
  return sum;
}

}  // namespace kf::cuda
