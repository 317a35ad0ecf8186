// Vectors of an 8-bit cache at the SIMD level of the including file: the
// arithmetic of core/byte_scale.h, to the bit.
#pragma once

#include <stdint.h>

#include "kernels/cpu/attention_kernels.h"
#include "kernels/cpu/vec.h"

namespace kf::cpu::KF_SIMD_NS {

using VB = int8_t __attribute__((vector_size(kLanes)));
using VS = int16_t __attribute__((vector_size(kLanes * 2)));

struct IntegerScale {
  float scale;
  float inverse;
};

// Of x [count], a multiple of kLanes. Magnitudes compare like their bits.
inline IntegerScale ScaleOf(const float* x, int32_t count, float range) {
  VI best = {};
  for (int32_t i = 0; i < count; i += kLanes) {
    const VI bits = reinterpret_cast<VI>(LoadBits(x + i) & SetBits(0x7FFFFFFF));
    best = bits > best ? bits : best;
  }
  int32_t most = best[0];
  for (int i = 1; i < kLanes; ++i) most = best[i] > most ? best[i] : most;
  if (most >= 0x7F800000) return {__builtin_nanf(""), 0.0F};
  float largest;
  __builtin_memcpy(&largest, &most, sizeof(largest));
  if (largest < 0x1p-100F) return {0.0F, 0.0F};
  return {largest / range, range / largest};
}

// x rounded to the nearest integers, ties to even; |x| < 2^22. Adding 1.5 2^23
// leaves them in the low bits.
inline VI RoundToInt(VF x) {
  const VF shift = Set(12582912.0F);
  return reinterpret_cast<VI>(FloatToBits(x + shift) - FloatToBits(shift));
}

// kLanes integers of 8 bits as f32. By name where there are instructions: gcc
// 12 widens a vector in halves and puts them together again.
inline VF LoadBytes(const int8_t* from) {
#if KF_SIMD_LEVEL >= 2
  __m128i bytes;
  __builtin_memcpy(&bytes, from, sizeof(bytes));
  return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(bytes));
#elif KF_SIMD_LEVEL == 1
  return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(
      _mm_loadl_epi64(reinterpret_cast<const __m128i*>(from))));
#else
  VB bytes;
  __builtin_memcpy(&bytes, from, sizeof(bytes));
  return __builtin_convertvector(__builtin_convertvector(bytes, VI), VF);
#endif
}

// The bytes of x [d] rounded to bf16, [row], and their scale; x is overwritten,
// has room for `row` rounded up to 16, and so has `bytes`.
inline float RoundToBytes(float* x, int32_t d, int32_t row, int8_t* bytes) {
  const int32_t padded = (row + 15) / 16 * 16;
  for (int32_t c = d; c < padded; ++c) x[c] = 0.0F;
  for (int32_t c = 0; c < padded; c += kLanes) {
    StoreBits(RoundToBf16Bits(Load(x + c)), x + c);
  }
  const IntegerScale scale = ScaleOf(x, padded, 127.0F);
  for (int32_t c = 0; c < padded; c += kLanes) {
    const VI rounded = RoundToInt(Load(x + c) * Set(scale.inverse));
    const VB packed = __builtin_convertvector(rounded, VB);
    __builtin_memcpy(bytes + c, &packed, sizeof(packed));
  }
  return scale.scale;
}

inline float& ScaleAt(unsigned char* scales, int32_t slot) {
  return reinterpret_cast<float*>(scales)[slot];
}

// x [d] into the K of a slot; x as in RoundToBytes.
inline void StoreByteKey(const HeadLayout& layout,
                         float* x,
                         unsigned char* block,
                         int32_t slot) {
  int8_t bytes[kMaxByteRow];
  ScaleAt(block + layout.k_scale_offset, slot) =
      RoundToBytes(x, layout.d, layout.value_stride, bytes);
  for (int32_t step = 0; step < layout.steps; ++step) {
    __builtin_memcpy(block + (step * kSlots + slot) * 4, bytes + step * 4, 4);
  }
}

inline void StoreByteValue(const HeadLayout& layout,
                           float* x,
                           unsigned char* block,
                           int32_t slot) {
  int8_t bytes[kMaxByteRow];
  ScaleAt(block + layout.v_scale_offset, slot) =
      RoundToBytes(x, layout.d, layout.value_stride, bytes);
  __builtin_memcpy(
      block + layout.v_offset + int64_t{slot} * layout.value_stride, bytes,
      static_cast<uint64_t>(layout.value_stride));
}

// The K of a slot as f32, [value_stride].
inline void LoadByteKey(const HeadLayout& layout,
                        const unsigned char* block,
                        int32_t slot,
                        float* x) {
  float scale;
  __builtin_memcpy(&scale, block + layout.k_scale_offset + slot * 4, 4);
  for (int32_t step = 0; step < layout.steps; ++step) {
    int8_t bytes[4];
    __builtin_memcpy(bytes, block + (step * kSlots + slot) * 4, 4);
    for (int i = 0; i < 4; ++i) {
      x[step * 4 + i] = static_cast<float>(bytes[i]) * scale;
    }
  }
}

// A rotated query as integers of 16 bits: two words for each word of K, the
// channels {0, 2} and {1, 3} of four, then the scale. x as in RoundToBytes.
inline void PackByteQuery(const HeadLayout& layout, float* x, uint32_t* out) {
  const int32_t padded = (layout.value_stride + 15) / 16 * 16;
  for (int32_t c = layout.d; c < padded; ++c) x[c] = 0.0F;
  const IntegerScale scale = ScaleOf(x, padded, 32767.0F);
  int16_t q[kMaxByteRow];
  for (int32_t c = 0; c < padded; c += kLanes) {
    const VI rounded = RoundToInt(Load(x + c) * Set(scale.inverse));
    const VS packed = __builtin_convertvector(rounded, VS);
    __builtin_memcpy(q + c, &packed, sizeof(packed));
  }
  for (int32_t step = 0; step < layout.steps; ++step) {
    const int16_t words[4] = {q[step * 4], q[step * 4 + 2], q[step * 4 + 1],
                              q[step * 4 + 3]};
    __builtin_memcpy(out + step * 2, words, sizeof(words));
  }
  __builtin_memcpy(out + layout.steps * 2, &scale.scale, sizeof(float));
}

}  // namespace kf::cpu::KF_SIMD_NS
