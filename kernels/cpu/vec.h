// Vectors of f32 and u32 at the SIMD level that the including file is compiled
// for; everything is in kf::cpu::KF_SIMD_NS, one namespace a level, so that no
// level's code can be linked in place of another's (simd_level.h).
//
// The types are the compiler's vector extensions: + - * /, comparisons (which
// give VI masks, 0 or -1), m ? a : b, shifts and [] work on them as they are.
// Where the order of a sum matters it is written out; the files are compiled
// with -ffp-contract=off, so a fused multiply-add is one that says Fma.
#pragma once

#include <stdint.h>

// 0 scalar, 1 avx2, 2 avx512, 3 avx512_bf16: set by CMakeLists.txt. Sources of
// integer products are compiled for avx512 a second time, with KF_SIMD_VNNI;
// KF_SIMD_AMX is avx512 with tiles.
#ifndef KF_SIMD_LEVEL
#define KF_SIMD_LEVEL 0
#endif

#if KF_SIMD_LEVEL > 0
#include <immintrin.h>
#endif

#if KF_SIMD_LEVEL == 0
#define KF_SIMD_NS scalar
#elif KF_SIMD_LEVEL == 1
#define KF_SIMD_NS avx2
#elif KF_SIMD_LEVEL == 2 && defined(KF_SIMD_VNNI)
#define KF_SIMD_NS avx512_vnni
#elif KF_SIMD_LEVEL == 2 && defined(KF_SIMD_AMX)
#define KF_SIMD_NS amx_bf16
#elif KF_SIMD_LEVEL == 2
#define KF_SIMD_NS avx512
#else
#define KF_SIMD_NS avx512_bf16
#endif

namespace kf::cpu::KF_SIMD_NS {

// Level "scalar" has 16-byte vectors: what any x86-64 has, and what a compiler
// emulates where there is nothing.
inline constexpr int kVecBytes = KF_SIMD_LEVEL == 0   ? 16
                                 : KF_SIMD_LEVEL == 1 ? 32
                                                      : 64;
inline constexpr int kLanes = kVecBytes / 4;
inline constexpr bool kHasDotBf16 = KF_SIMD_LEVEL == 3;

using VF = float __attribute__((vector_size(kVecBytes)));
using VU = uint32_t __attribute__((vector_size(kVecBytes)));
using VI = int32_t __attribute__((vector_size(kVecBytes)));

inline VF BitsToFloat(VU x) { return reinterpret_cast<VF>(x); }
inline VU FloatToBits(VF x) { return reinterpret_cast<VU>(x); }

// No alignment is needed.
inline VF Load(const float* from) {
  VF v;
  __builtin_memcpy(&v, from, sizeof(v));
  return v;
}
inline VU LoadBits(const void* from) {
  VU v;
  __builtin_memcpy(&v, from, sizeof(v));
  return v;
}
inline void Store(VF v, float* to) { __builtin_memcpy(to, &v, sizeof(v)); }
inline void StoreBits(VU v, void* to) { __builtin_memcpy(to, &v, sizeof(v)); }

inline VF Zero() { return VF{}; }

#if KF_SIMD_LEVEL == 0
inline VF Set(float x) { return VF{x, x, x, x}; }
inline VU SetBits(uint32_t x) { return VU{x, x, x, x}; }
// a * b + c; two roundings at this level.
inline VF Fma(VF a, VF b, VF c) { return a * b + c; }
#elif KF_SIMD_LEVEL == 1
inline VF Set(float x) { return _mm256_set1_ps(x); }
inline VU SetBits(uint32_t x) {
  return reinterpret_cast<VU>(_mm256_set1_epi32(static_cast<int>(x)));
}
inline VF Fma(VF a, VF b, VF c) { return _mm256_fmadd_ps(a, b, c); }
#else
inline VF Set(float x) { return _mm512_set1_ps(x); }
inline VU SetBits(uint32_t x) {
  return reinterpret_cast<VU>(_mm512_set1_epi32(static_cast<int>(x)));
}
inline VF Fma(VF a, VF b, VF c) { return _mm512_fmadd_ps(a, b, c); }
#endif

inline VI SetInt(int32_t x) {
  return reinterpret_cast<VI>(SetBits(static_cast<uint32_t>(x)));
}

// The second argument where one is NaN, as the instruction has it.
#if KF_SIMD_LEVEL == 0
inline VF Max(VF a, VF b) { return a > b ? a : b; }
inline VF Min(VF a, VF b) { return a < b ? a : b; }
#elif KF_SIMD_LEVEL == 1
inline VF Max(VF a, VF b) { return _mm256_max_ps(a, b); }
inline VF Min(VF a, VF b) { return _mm256_min_ps(a, b); }
#else
inline VF Max(VF a, VF b) { return _mm512_max_ps(a, b); }
inline VF Min(VF a, VF b) { return _mm512_min_ps(a, b); }
#endif

// Sum of the lanes, by halves: lane i + lane i + kLanes / 2, and so on.
inline float ReduceAdd(VF v) {
  float lane[kLanes];
  Store(v, lane);
  for (int half = kLanes / 2; half > 0; half /= 2) {
    for (int i = 0; i < half; ++i) lane[i] += lane[i + half];
  }
  return lane[0];
}
inline float ReduceMax(VF v) {
  float lane[kLanes];
  Store(v, lane);
  float best = lane[0];
  for (int i = 1; i < kLanes; ++i) best = lane[i] > best ? lane[i] : best;
  return best;
}

// Always inlined: a call saves all vectors, and costs more than the arithmetic.
#define KF_SIMD_INLINE __attribute__((always_inline)) inline

// e^x to 2 ulp; 0 below -87.3 (-inf included), e^88.37 above 88.37, NaN of NaN.
// Range reduction as in Cephes expf (S. Moshier), then a minimax polynomial of
// (e^r - 1) / r, whose error is below 1e-7 of e^r.
KF_SIMD_INLINE VF Exp(VF x) {
  const VF bounded = Min(Set(88.3762626647949F), x);
  // Adding 1.5 * 2^23 rounds to the nearest integer n; with 127 more, the low
  // bits are n's exponent, without a conversion, which NaN would make
  // undefined.
  const VF shift = Set(12582912.0F + 127.0F);
  const VF shifted = Fma(bounded, Set(1.44269504088896341F), shift);
  const VF n = shifted - shift;
  VF r = Fma(n, Set(-0.693359375F), bounded);
  r = Fma(n, Set(2.12194440e-4F), r);
  VF p = Set(8.29030573e-3F);
  p = Fma(p, r, Set(4.18979749e-2F));
  p = Fma(p, r, Set(1.66676372e-1F));
  p = Fma(p, r, Set(4.99991506e-1F));
  p = Fma(p, r, Set(9.99999702e-1F));
  p = Fma(p, r, Set(1.0F));
  const VF y = p * BitsToFloat(FloatToBits(shifted) << 23);
  return x < Set(-87.3365447505531F) ? Zero() : y;
}

// silu(gate) * up
KF_SIMD_INLINE VF SwiGluOf(VF gate, VF up) {
  return gate / (Set(1.0F) + Exp(-gate)) * up;
}

// x rounded to bfloat16, as bits in the upper half; to nearest even, NaN stays
// NaN. The same values as FloatToBf16 of bf16.h.
inline VU RoundToBf16Bits(VF x) {
  const VU bits = FloatToBits(x);
  const VU rounded = bits + SetBits(0x7FFF) + ((bits >> 16) & SetBits(1));
  const VU quiet = bits | SetBits(0x400000);
  // NOLINTNEXTLINE(misc-redundant-expression): a NaN is not itself
  return (x == x ? rounded : quiet) & SetBits(0xFFFF0000U);
}
inline uint32_t RoundToBf16Bits(float x) {
  uint32_t bits;
  __builtin_memcpy(&bits, &x, sizeof(bits));
  if ((bits & 0x7FFFFFFFU) > 0x7F800000U) return (bits | 0x400000U) >> 16 << 16;
  return (bits + 0x7FFFU + ((bits >> 16) & 1U)) >> 16 << 16;
}

// Halves of bf16 pairs, element 2i in the low half of lane i, as f32.
inline VF EvenBf16(VU pairs) { return BitsToFloat(pairs << 16); }
inline VF OddBf16(VU pairs) {
  return BitsToFloat(pairs & SetBits(0xFFFF0000U));
}

// acc + a_odd * b_odd + a_even * b_even per lane; the order of vdpbf16ps, which
// itself flushes subnormals.
inline VF DotBf16(VF acc, VU a, VU b) {
#if KF_SIMD_LEVEL == 3
  return _mm512_dpbf16_ps(acc, reinterpret_cast<__m512bh>(a),
                          reinterpret_cast<__m512bh>(b));
#else
  return Fma(EvenBf16(a), EvenBf16(b), Fma(OddBf16(a), OddBf16(b), acc));
#endif
}

// Pairs of 16 bits: bytes 0 and 2, and 1 and 3, of each lane.
using VHalves = int16_t __attribute__((vector_size(kVecBytes)));
inline VI EvenBytes(VU words) {
  return reinterpret_cast<VI>(reinterpret_cast<VHalves>(words << 8) >> 8);
}
inline VI OddBytes(VU words) {
  return reinterpret_cast<VI>(reinterpret_cast<VHalves>(words) >> 8);
}

// acc + a_high * b_high + a_low * b_low per lane, of pairs of 16 bits.
inline VI DotShorts(VI acc, VI a, VI b) {
#if KF_SIMD_LEVEL >= 2
  return acc + reinterpret_cast<VI>(_mm512_madd_epi16(
                   reinterpret_cast<__m512i>(a), reinterpret_cast<__m512i>(b)));
#elif KF_SIMD_LEVEL == 1
  return acc + reinterpret_cast<VI>(_mm256_madd_epi16(
                   reinterpret_cast<__m256i>(a), reinterpret_cast<__m256i>(b)));
#else
  const auto low = [](VI x) {
    return reinterpret_cast<VI>(reinterpret_cast<VU>(x) << 16) >> 16;
  };
  return acc + (a >> 16) * (b >> 16) + low(a) * low(b);
#endif
}

}  // namespace kf::cpu::KF_SIMD_NS
