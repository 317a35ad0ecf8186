// The per-level kernels of products with 8-bit and 4-bit weights: what
// group_simd.cc gives for each instruction set.
//
// Weights and activations are small integers in groups of 32 along K, each
// group with its scale. With w = d (q - z) + m and x = e p, a group adds
//   d e sum((q - z) p) + m (e sum(p))
// to an element of the product: the sums are exact in 32-bit integers, and each
// is converted and added in f32, group after group. So bits depend neither on
// how the work is cut nor on the instructions that make the integer sums: avx2,
// avx512 and avx512_vnni give the same (scalar rounds a multiply-add twice).
#pragma once

#include <stdint.h>

#include "kernels/cpu/dense_kernels.h"

namespace kf::cpu {

inline constexpr int64_t kGroup = 32;  // kGroupWeights

// A panel's step is one group of 16 rows of W:
//   8 bits: 8 lines [16][4] of q, z = 128; line j holds K = 4 j .. 4 j + 3
//   4 bits: 4 lines [16][4], z = 0; line j holds 4 j .. 4 j + 3 in its low
//           nibbles and 16 + those in its high ones
// then [16] halves d and [16] halves m.
inline constexpr int64_t kGroupBytes8 = 9 * kLineBytes;
inline constexpr int64_t kGroupBytes4 = 5 * kLineBytes;

// A row of x: [G][32] int8 p, |p| <= 127, then three arrays [G]: floats e,
// floats e sum(p), int32 -128 sum(p). G = ceil(K / 32).
inline constexpr int64_t kGroupRowBytes = kGroup + 12;

struct GroupKernels {
  // LinearBlock::steps counts groups; x is what quantize_row left.
  void (*linear_q8)(const LinearBlock& block);
  void (*linear_q4)(const LinearBlock& block);
  // e is the group's largest magnitude / 127 and p = x / e to nearest even;
  // below 1.5e-36 the group is 0. A group with a value that is not finite has e
  // = NaN, so its row of the product is NaN. Writes G * kGroupRowBytes; the
  // last group is filled up with zeros.
  void (*quantize_row)(const float* x, int64_t k, void* out);
};

namespace scalar {
extern const GroupKernels kGroupKernels;
}
namespace avx2 {
extern const GroupKernels kGroupKernels;
}
namespace avx512 {
extern const GroupKernels kGroupKernels;
}
namespace avx512_vnni {
extern const GroupKernels kGroupKernels;
}

}  // namespace kf::cpu
