// bfloat16 as a 16-bit integer; round to nearest even, as vcvtneps2bf16 does
// for normal numbers.
#pragma once

#include <bit>
#include <cstdint>

namespace kf {

using Bf16 = uint16_t;

constexpr float Bf16ToFloat(Bf16 x) {
  return std::bit_cast<float>(static_cast<uint32_t>(x) << 16);
}

// NaN stays NaN (quiet); the bits of its payload are cut.
constexpr Bf16 FloatToBf16(float x) {
  const uint32_t bits = std::bit_cast<uint32_t>(x);
  if ((bits & 0x7FFFFFFFU) > 0x7F800000U) {
    return static_cast<Bf16>((bits >> 16) | 0x40U);
  }
  return static_cast<Bf16>((bits + 0x7FFFU + ((bits >> 16) & 1U)) >> 16);
}

}  // namespace kf
