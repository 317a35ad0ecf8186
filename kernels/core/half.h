// IEEE half precision as a 16-bit integer.
#pragma once

#include <bit>
#include <cstdint>

namespace kf {

// Exact; subnormals and NaN payloads included.
constexpr float HalfToFloat(uint16_t half) {
  const uint32_t sign = uint32_t{half & 0x8000U} << 16;
  const uint32_t exponent = (half >> 10) & 0x1FU;
  const uint32_t mantissa = half & 0x3FFU;
  if (exponent == 0) {
    const float magnitude = static_cast<float>(mantissa) * 0x1p-24F;
    return std::bit_cast<float>(sign | std::bit_cast<uint32_t>(magnitude));
  }
  const uint32_t wide = exponent == 0x1FU ? 0xFFU : exponent + 112U;
  return std::bit_cast<float>(sign | (wide << 23) | (mantissa << 13));
}

// To nearest even; infinity from 65,520 on, NaN stays NaN.
constexpr uint16_t FloatToHalf(float x) {
  const uint32_t bits = std::bit_cast<uint32_t>(x);
  const uint32_t sign = (bits >> 16) & 0x8000U;
  const uint32_t magnitude = bits & 0x7FFFFFFFU;
  uint32_t half;
  if (magnitude > 0x7F800000U) {
    half = 0x7E00U;
  } else if (magnitude >= 0x477FF000U) {
    half = 0x7C00U;
  } else if (magnitude >= 0x38800000U) {
    const uint32_t even = (magnitude >> 13) & 1U;
    half = (magnitude + 0xFFFU + even - (112U << 23)) >> 13;
  } else {
    // Added to 0.5, a subnormal's bits are the sum's last ones.
    const float sum = std::bit_cast<float>(magnitude) + 0.5F;
    half = std::bit_cast<uint32_t>(sum) - 0x3F000000U;
  }
  return static_cast<uint16_t>(sign | half);
}

}  // namespace kf
