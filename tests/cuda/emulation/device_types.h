// Qualifiers, vector types and bfloat16 of the CUDA language, with CUDA's own
// names, sizes and alignments.
#pragma once

#include <cstdint>
#include <cstring>

// Names of the CUDA language.
// NOLINTBEGIN(bugprone-reserved-identifier,readability-identifier-naming)
#define __global__
#define __device__
#define __host__
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __align__(bytes) alignas(bytes)

struct int2 {
  int x, y;
};
struct alignas(16) int4 {
  int x, y, z, w;
};
struct uint3 {
  unsigned x, y, z;
};
struct alignas(8) uint2 {
  unsigned x, y;
};
struct alignas(16) uint4 {
  unsigned x, y, z, w;
};
struct alignas(8) float2 {
  float x, y;
};
struct alignas(16) float4 {
  float x, y, z, w;
};
struct dim3 {
  unsigned x, y, z;
  // NOLINTNEXTLINE(google-explicit-constructor): as CUDA has it
  constexpr dim3(unsigned x_ = 1, unsigned y_ = 1, unsigned z_ = 1)
      : x(x_), y(y_), z(z_) {}
};
inline int2 make_int2(int x, int y) { return {x, y}; }
inline int4 make_int4(int x, int y, int z, int w) { return {x, y, z, w}; }
inline uint2 make_uint2(unsigned x, unsigned y) { return {x, y}; }
inline uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) {
  return {x, y, z, w};
}
inline float2 make_float2(float x, float y) { return {x, y}; }
inline float4 make_float4(float x, float y, float z, float w) {
  return {x, y, z, w};
}

inline uint32_t __float_as_uint(float f) {
  uint32_t bits;
  std::memcpy(&bits, &f, sizeof bits);
  return bits;
}
inline float __uint_as_float(uint32_t bits) {
  float f;
  std::memcpy(&f, &bits, sizeof f);
  return f;
}
inline int __float_as_int(float f) {
  return static_cast<int>(__float_as_uint(f));
}
inline float __int_as_float(int bits) {
  return __uint_as_float(static_cast<uint32_t>(bits));
}

struct __nv_bfloat16 {
  uint16_t bits;
};
struct alignas(4) __nv_bfloat162 {
  __nv_bfloat16 x, y;
};
inline float __bfloat162float(__nv_bfloat16 b) {
  return __uint_as_float(static_cast<uint32_t>(b.bits) << 16);
}
// Round to nearest even; every NaN becomes 0x7fff, as cvt.rn.bf16.f32 has it.
inline __nv_bfloat16 __float2bfloat16(float f) {
  const uint32_t u = __float_as_uint(f);
  if ((u & 0x7FFFFFFFU) > 0x7F800000U) return {0x7FFF};
  return {static_cast<uint16_t>((u + 0x7FFFU + ((u >> 16) & 1U)) >> 16)};
}
inline __nv_bfloat16 __float2bfloat16_rn(float f) {
  return __float2bfloat16(f);
}
inline __nv_bfloat162 __floats2bfloat162_rn(float low, float high) {
  return {__float2bfloat16(low), __float2bfloat16(high)};
}
inline uint16_t __bfloat16_as_ushort(__nv_bfloat16 b) { return b.bits; }
inline __nv_bfloat16 __ushort_as_bfloat16(uint16_t bits) { return {bits}; }
// NOLINTEND(bugprone-reserved-identifier,readability-identifier-naming)
