// Two neighbouring values in one access. Device code.
#pragma once

#include "kernels/cuda/gpu.h"

namespace kf::cuda {

// `to` is aligned for both.
__device__ __forceinline__ void StorePair(float* to, float a, float b) {
  *reinterpret_cast<float2*>(to) = make_float2(a, b);
}
__device__ __forceinline__ void StorePair(gpu::bf16* to, float a, float b) {
  *reinterpret_cast<__nv_bfloat162*>(to) = __floats2bfloat162_rn(a, b);
}

}  // namespace kf::cuda
