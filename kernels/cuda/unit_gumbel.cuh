// Gumbel noise at tau 1, where e^zeta = 1 / -ln u: a weight exp(x + zeta) costs
// one logarithm and no second exponential. Device code.
#pragma once

#include <cstdint>

#include "kernels/core/noise.h"
#include "kernels/cuda/gpu.h"

namespace kf::cuda {

// ln x of normal x > 0, relative error below 3e-7 also near 1, as the CPU
// backend has it: x = 2^e (1 + m) with 1 + m in [sqrt(1/2), sqrt(2)), and a
// minimax polynomial of ln(1 + m) / m. No branch, as logf has for values that a
// uniform number never takes.
__device__ __forceinline__ float LogOfNormal(float x) {
  const uint32_t bits = __float_as_uint(x);
  const uint32_t scaled = bits - 0x3F3504F3U;
  // A small integer to float by an addition: conversions are slow.
  constexpr float kShift = 12582912.0F;  // 1.5 2^23
  const auto exponent =
      static_cast<uint32_t>(static_cast<int32_t>(scaled) >> 23);
  const float e = __uint_as_float(0x4B400000U + exponent) - kShift;
  const float m = __uint_as_float(bits - (scaled & 0xFF800000U)) - 1.0F;
  float p = fmaf(-0.10106896F, m, 0.16222581F);
  p = fmaf(p, m, -0.1725083F);
  p = fmaf(p, m, 0.19900165F);
  p = fmaf(p, m, -0.24969909F);
  p = fmaf(p, m, 0.3333506F);
  p = fmaf(p, m, -0.50000364F);
  p = fmaf(p, m, 0.99999994F);
  return fmaf(e, 0.693147181F, p * m);
}

// NoiseU of noise.h without a conversion: 1 + k 2^-23 less 1 - 2^-24, both
// exact.
__device__ __forceinline__ float NoiseUOfBits(NoiseRow row, uint32_t key) {
  const uint32_t bits = MixBits(MixBits(key ^ row.a) + row.b);
  return __uint_as_float((bits >> 9) | 0x3F800000U) - (1.0F - 0x1p-24F);
}

// weight * e^zeta of one key.
__device__ __forceinline__ float TimesUnitGumbel(float weight,
                                                 NoiseRow row,
                                                 uint32_t key) {
  return -weight * gpu::reciprocal_approx(LogOfNormal(NoiseUOfBits(row, key)));
}

}  // namespace kf::cuda
