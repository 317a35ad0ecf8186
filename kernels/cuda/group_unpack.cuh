// Integer weights to bf16, in registers: what both products by them, for few
// rows and for many, multiply by. Device code.
#pragma once

#include <cstdint>

#include "kernels/cuda/gpu.h"
#include "kernels/cuda/group_tile.h"

namespace kf::cuda {

// A lane's weights in one group, as the bf16 pairs of two products m16n8k16:
// b[0] and b[1] of the first 16 inputs, b[2] and b[3] of the next.
using GroupFragment = uint32_t[4];

// 4 bits: scale q + minimum as 16 scale (1 + q / 16) + (minimum - 16 scale),
// which takes a conversion and a subtraction less a weight, in f32: the same
// number, unless the minimum is so small beside the scale (by 2^-9 or more)
// that the difference of both is rounded; then within 2^-20 of the scale.
__device__ __forceinline__ void UnpackGroup(GroupFragment& b,
                                            uint32_t quants,
                                            uint32_t scale) {
  const float factor = 16.0F * gpu::half_low(scale);
  const float offset = gpu::half_high(scale) - factor;
  // Four bytes 1000 or 1qqqq000: what follows the exponent of 1 + q / 16.
  const uint32_t low = (quants << 3 & 0x78787878U) | 0x80808080U;
  const uint32_t high = (quants >> 1 & 0x78787878U) | 0x80808080U;
  const auto weight = [&](uint32_t bytes, uint32_t i) {
    const float x =
        __uint_as_float(__byte_perm(bytes, 0x3F000000U, 0x7044U | i << 8));
    return __fmaf_rn(factor, x, offset);
  };
  b[0] = gpu::pack_bf16(weight(low, 0), weight(low, 1));
  b[1] = gpu::pack_bf16(weight(low, 2), weight(low, 3));
  b[2] = gpu::pack_bf16(weight(high, 0), weight(high, 1));
  b[3] = gpu::pack_bf16(weight(high, 2), weight(high, 3));
}

// 8 bits: scale (q - 128) + minimum.
__device__ __forceinline__ void UnpackGroup(GroupFragment& b,
                                            uint32_t first,
                                            uint32_t last,
                                            uint32_t scale) {
  const float factor = gpu::half_low(scale);
  const float offset = gpu::half_high(scale);
  const auto weight = [&](uint32_t bytes, uint32_t i) {
    // 2^23 + q, exactly.
    const float x =
        __uint_as_float(__byte_perm(bytes, 0x4B000000U, 0x7440U | i));
    return __fmaf_rn(factor, x - 8388736.0F, offset);
  };
  b[0] = gpu::pack_bf16(weight(first, 0), weight(first, 1));
  b[1] = gpu::pack_bf16(weight(first, 2), weight(first, 3));
  b[2] = gpu::pack_bf16(weight(last, 0), weight(last, 1));
  b[3] = gpu::pack_bf16(weight(last, 2), weight(last, 3));
}

// A lane's weights of a whole tile, in the tile's memory, shared or device.
template <int kBits>
struct LaneWeights {
  uint4 quants[kBits / 4];
  uint4 scales;

  __device__ __forceinline__ void Load(const GroupTile<kBits>& tile, int lane) {
    const auto* words = reinterpret_cast<const uint4*>(tile.quants);
#pragma unroll
    for (int i = 0; i < kBits / 4; ++i) quants[i] = words[32 * i + lane];
    scales = reinterpret_cast<const uint4*>(tile.scales)[lane / 4];
  }
  // Group j, known to the compiler.
  __device__ __forceinline__ void Unpack(GroupFragment& b, int j) const {
    const uint32_t scale = Word(scales, j);
    if constexpr (kBits == 4) {
      UnpackGroup(b, Word(quants[0], j), scale);
    } else {
      const uint4& words = quants[j / 2];
      UnpackGroup(b, Word(words, j % 2 * 2), Word(words, j % 2 * 2 + 1), scale);
    }
  }

 private:
  __device__ static __forceinline__ uint32_t Word(const uint4& v, int i) {
    return i == 0 ? v.x : i == 1 ? v.y : i == 2 ? v.z : v.w;
  }
};

}  // namespace kf::cuda
