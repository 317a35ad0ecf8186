// Fields of GGML's quantised blocks (ggml-common.h), read byte by byte.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/core/half.h"

namespace kf::ggml {

inline uint32_t Byte(const std::byte* p) {
  return std::to_integer<uint32_t>(*p);
}

inline float LoadHalf(const std::byte* p) {
  return HalfToFloat(static_cast<uint16_t>(Byte(p) | (Byte(p + 1) << 8)));
}

inline float AsFloat(uint32_t quant) { return static_cast<float>(quant); }

// Q5_0, Q5_1: the fifth bits of the 32 elements, element i in bit i.
inline uint32_t LoadHighBits(const std::byte* p) {
  return Byte(p) | (Byte(p + 1) << 8) | (Byte(p + 2) << 16) |
         (Byte(p + 3) << 24);
}

// Q4_K, Q5_K: scale and minimum of sub-block j, 0 .. 7: 6 bits each, packed in
// 12 bytes.
struct ScaleMin {
  float scale;
  float minimum;
};
inline ScaleMin UnpackScaleMin(const std::byte* packed, int j) {
  if (j < 4) {
    return {AsFloat(Byte(packed + j) & 63U),
            AsFloat(Byte(packed + j + 4) & 63U)};
  }
  const uint32_t nibbles = Byte(packed + j + 4);
  return {AsFloat((nibbles & 0xFU) | ((Byte(packed + j - 4) >> 6) << 4)),
          AsFloat((nibbles >> 4) | ((Byte(packed + j) >> 6) << 4))};
}

}  // namespace kf::ggml
