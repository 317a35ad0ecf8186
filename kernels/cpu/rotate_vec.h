// Rotary positions of one head, for the SIMD level of the including file.
#pragma once

#include <stdint.h>

#include "kernels/cpu/attention_kernels.h"
#include "kernels/cpu/vec.h"

namespace kf::cpu::KF_SIMD_NS {

using VPairs = uint64_t __attribute__((vector_size(kVecBytes)));

// Adjacent pairs {a, b} rotated by {cos, sin}: {a cos - b sin, b cos + a sin},
// with no fused multiply-add, as in the reference. Written out, since gcc 12
// makes vfmaddsub of a loop over pairs in spite of -ffp-contract=off.
inline VF RotatePairs(VF x, VF cos_sin) {
  constexpr uint64_t kLow = 0xFFFFFFFFU;
  const auto pairs = reinterpret_cast<VPairs>(x);
  const auto turns = reinterpret_cast<VPairs>(cos_sin);
  const auto swapped = reinterpret_cast<VF>((pairs << 32) | (pairs >> 32));
  const auto cosines = reinterpret_cast<VF>((turns << 32) | (turns & kLow));
  const auto sines = reinterpret_cast<VF>((turns >> 32) | (turns & ~kLow));
  const auto other = reinterpret_cast<VPairs>(swapped * sines);
  return x * cosines + reinterpret_cast<VF>(other ^ 0x80000000U);
}

// out = x [d] with the leading rotary_dim channels rotated by cos_sin; in place
// too.
inline void Rotate(const HeadLayout& layout,
                   const float* x,
                   const float* cos_sin,
                   float* out) {
  int32_t i = 0;
  for (; i + kLanes <= layout.rotary_dim; i += kLanes) {
    Store(RotatePairs(Load(x + i), Load(cos_sin + i)), out + i);
  }
  if (i < layout.rotary_dim) {
    const auto bytes = static_cast<uint64_t>(layout.rotary_dim - i) * 4;
    float rest[kLanes] = {};
    float turns[kLanes] = {};
    __builtin_memcpy(rest, x + i, bytes);
    __builtin_memcpy(turns, cos_sin + i, bytes);
    Store(RotatePairs(Load(rest), Load(turns)), rest);
    __builtin_memcpy(out + i, rest, bytes);
    i = layout.rotary_dim;
  }
  for (; i < layout.d; ++i) out[i] = x[i];
}

}  // namespace kf::cpu::KF_SIMD_NS
