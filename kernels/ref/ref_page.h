// Cache pages of the reference back end: for each kv head, K [16][d],
// V [16][d], position [16], score [16], all 32-bit. A bf16 or 8-bit cache holds
// the rounded values as f32.
#pragma once

#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "kernels/backend.h"
#include "kernels/core/bf16.h"
#include "kernels/core/byte_scale.h"

namespace kf::ref {

inline size_t HeadBytes(const AttentionShape& shape) {
  return static_cast<size_t>(kPageTokens) *
         (2 * static_cast<size_t>(shape.head_dim) + 2) * 4;
}

// x as a cache of this type holds it; an 8-bit one rounds the whole vector
// then.
inline float Stored(float x, DType dtype) {
  return dtype == DType::kF32 ? x : Bf16ToFloat(FloatToBf16(x));
}

// x = the multiples of its scale that it is rounded to.
inline void RoundToIntegers(std::span<float> x, float range) {
  const ByteScale scale = ByteScaleOf(x, range);
  for (float& v : x) v = std::nearbyint(v * scale.inverse) * scale.scale;
}

// K or V of a token, [d], as a cache of this type holds it; in place too.
inline void StoreVector(std::span<const float> x, DType dtype, float* to) {
  for (size_t c = 0; c < x.size(); ++c) to[c] = Stored(x[c], dtype);
  if (dtype == DType::kI8) RoundToIntegers({to, x.size()}, kByteRange);
}

// A rotated query, [d], as keys of this type are multiplied with it.
inline std::vector<float> RoundedQuery(std::span<const float> q, DType dtype) {
  std::vector<float> rounded(q.begin(), q.end());
  if (dtype == DType::kI8) {
    RoundToIntegers(rounded, kQueryRange);
  } else {
    for (float& x : rounded) x = Stored(x, dtype);
  }
  return rounded;
}

// One held token of one kv head.
struct Slot {
  float* k;  // [d]
  float* v;  // [d]
  int32_t* position;
  float* score;
};

inline Slot SlotAt(const AttentionShape& shape,
                   const PageSpan& span,
                   int32_t head,
                   int32_t slot) {
  const auto d = static_cast<size_t>(shape.head_dim);
  const auto page = static_cast<size_t>(slot / kPageTokens);
  const auto at = static_cast<size_t>(slot % kPageTokens);
  std::byte* base = span.base + (static_cast<size_t>(span.pages[page]) *
                                     static_cast<size_t>(shape.kv_heads) +
                                 static_cast<size_t>(head)) *
                                    HeadBytes(shape);
  auto* words = reinterpret_cast<float*>(base);
  auto* positions = reinterpret_cast<int32_t*>(base + 2 * kPageTokens * d * 4);
  auto* scores = reinterpret_cast<float*>(positions + kPageTokens);
  return {words + at * d, words + (kPageTokens + at) * d, positions + at,
          scores + at};
}

}  // namespace kf::ref
