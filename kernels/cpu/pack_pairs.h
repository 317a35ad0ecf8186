// Rows of x as pairs of bf16, for the products that take two at a time.
#pragma once

#include "kernels/cpu/vec.h"

namespace kf::cpu::KF_SIMD_NS {
namespace {

// K floats rounded to nearest even; an odd K is padded with zero.
inline void PackPairs(const float* x, int64_t k, uint16_t* to) {
  using Narrow = uint16_t __attribute__((vector_size(kLanes * 2)));
  int64_t i = 0;
  for (; i + kLanes <= k; i += kLanes) {
    const Narrow v =
        __builtin_convertvector(RoundToBf16Bits(Load(x + i)) >> 16, Narrow);
    __builtin_memcpy(to + i, &v, sizeof(v));
  }
  // The words may be read as pairs: copied, not assigned.
  for (; i < k; ++i) {
    const auto half = static_cast<uint16_t>(RoundToBf16Bits(x[i]) >> 16);
    __builtin_memcpy(to + i, &half, sizeof(half));
  }
  if (k % 2 != 0) __builtin_memset(to + k, 0, sizeof(*to));
}

}  // namespace
}  // namespace kf::cpu::KF_SIMD_NS
