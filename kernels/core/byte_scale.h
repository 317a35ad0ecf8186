// Vectors as integers with one scale each: K and V of an 8-bit cache, and the
// queries that its keys are multiplied with.
//
// scale = largest / range and the integers round(x range / largest), to nearest
// even; largest: the largest magnitude, range: kByteRange or kQueryRange.
// Kernels repeat this arithmetic to the bit (cpu/byte_vec.h).
#pragma once

#include <cmath>
#include <cstdint>
#include <limits>
#include <span>

namespace kf {

inline constexpr float kByteRange = 127.0F;     // of K and V
inline constexpr float kQueryRange = 32767.0F;  // 16 bits
// Vectors below it are 0: so the inverse is finite.
inline constexpr float kByteSmallest = 0x1p-100F;

struct ByteScale {
  float scale;    // of an integer; NaN where the vector is not finite
  float inverse;  // range / largest
};

inline ByteScale ByteScaleOf(std::span<const float> x, float range) {
  float largest = 0.0F;
  for (const float v : x) {
    if (!std::isfinite(v)) return {std::numeric_limits<float>::quiet_NaN(), 0};
    largest = std::fmax(largest, std::fabs(v));
  }
  if (largest < kByteSmallest) return {0.0F, 0.0F};
  return {largest / range, range / largest};
}

}  // namespace kf
