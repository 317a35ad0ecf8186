// Products with 8-bit and 4-bit weights; compiled once per instruction set.
#include "kernels/cpu/group_kernels.h"
#include "kernels/cpu/linear_tiles.h"
#include "kernels/cpu/vec.h"

namespace kf::cpu::KF_SIMD_NS {
namespace {

using VB = uint8_t __attribute__((vector_size(kLanes)));

inline VF ToFloat(VI x) { return __builtin_convertvector(x, VF); }

// a.even * b.even + a.odd * b.odd of the signed 16-bit halves of each lane.
inline VI DotHalves(VU a, VU b) {
#if KF_SIMD_LEVEL == 0
  const auto even = [](VU x) { return reinterpret_cast<VI>(x << 16) >> 16; };
  const auto odd = [](VU x) { return reinterpret_cast<VI>(x) >> 16; };
  return even(a) * even(b) + odd(a) * odd(b);
#elif KF_SIMD_LEVEL == 1
  return reinterpret_cast<VI>(_mm256_madd_epi16(reinterpret_cast<__m256i>(a),
                                                reinterpret_cast<__m256i>(b)));
#else
  return reinterpret_cast<VI>(_mm512_madd_epi16(reinterpret_cast<__m512i>(a),
                                                reinterpret_cast<__m512i>(b)));
#endif
}

// acc + the product of 4 unsigned bytes of w with 4 signed bytes of x, a lane.
inline VI DotBytes(VI acc, VU w, VU x) {
#ifdef KF_SIMD_VNNI
  return reinterpret_cast<VI>(_mm512_dpbusd_epi32(
      reinterpret_cast<__m512i>(acc), reinterpret_cast<__m512i>(w),
      reinterpret_cast<__m512i>(x)));
#else
  using VS = int16_t __attribute__((vector_size(kVecBytes)));
  const VU bytes = SetBits(0x00FF00FFU);
  const VU x_even = reinterpret_cast<VU>(reinterpret_cast<VS>(x << 8) >> 8);
  const VU x_odd = reinterpret_cast<VU>(reinterpret_cast<VS>(x) >> 8);
  return acc + DotHalves(w & bytes, x_even) +
         DotHalves((w >> 8) & bytes, x_odd);
#endif
}

// kLanes halves as floats; exact.
inline VF LoadHalves(const char* from) {
#if KF_SIMD_LEVEL >= 2
  return _mm512_cvtph_ps(
      _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)));
#else
  using VH = uint16_t __attribute__((vector_size(kLanes * 2)));
  VH halves;
  __builtin_memcpy(&halves, from, sizeof(halves));
  const VU bits = __builtin_convertvector(halves, VU);
  const VU magnitude = (bits & SetBits(0x7FFF)) << 13;
  // Scaling by 2^112 moves the exponent and normalises subnormals; infinity and
  // NaN keep the highest exponent.
  const VU scaled = FloatToBits(BitsToFloat(magnitude) * Set(0x1p112F));
  const VI special = magnitude >= SetBits(0x0F800000U);
  const VU exponent = reinterpret_cast<VU>(special) & SetBits(0x7F800000U);
  return BitsToFloat(scaled | exponent | ((bits & SetBits(0x8000)) << 16));
#endif
}

// The arrays of a quantised row.
struct Row {
  const char* quants;
  const float* scale;
  const float* sum;
  const int32_t* zero;
};

inline Row RowAt(const LinearBlock& b, int64_t row) {
  const char* x = static_cast<const char*>(b.x) + row * b.x_row_bytes;
  const auto* arrays = reinterpret_cast<const float*>(x + b.steps * kGroup);
  return {x, arrays, arrays + b.steps,
          reinterpret_cast<const int32_t*>(arrays + 2 * b.steps)};
}

inline uint32_t FourBytes(const char* from) {
  uint32_t bytes;
  __builtin_memcpy(&bytes, from, sizeof(bytes));
  return bytes;
}

struct Bits8 {
  static constexpr int64_t kBytes = kGroupBytes8;

  static inline int32_t Start(const Row& x, int64_t group) {
    return x.zero[group];
  }
  template <int kRows, int kVecs>
  static inline void Sum(const char* const (&x)[kRows],
                         const char* const (&w)[kVecs],
                         VI (&dot)[kRows][kVecs]) {
#pragma GCC unroll 8
    for (int line = 0; line < 8; ++line) {
      VU weight[kVecs];
      for (int v = 0; v < kVecs; ++v) {
        weight[v] = LoadBits(w[v] + line * kLineBytes);
      }
      for (int r = 0; r < kRows; ++r) {
        const VU a = SetBits(FourBytes(x[r] + 4 * line));
        for (int v = 0; v < kVecs; ++v) {
          dot[r][v] = DotBytes(dot[r][v], weight[v], a);
        }
      }
    }
  }
};

struct Bits4 {
  static constexpr int64_t kBytes = kGroupBytes4;

  static inline int32_t Start(const Row&, int64_t) { return 0; }
  template <int kRows, int kVecs>
  static inline void Sum(const char* const (&x)[kRows],
                         const char* const (&w)[kVecs],
                         VI (&dot)[kRows][kVecs]) {
    const VU nibbles = SetBits(0x0F0F0F0FU);
#pragma GCC unroll 4
    for (int line = 0; line < 4; ++line) {
      VU weight[kVecs];
      for (int v = 0; v < kVecs; ++v) {
        weight[v] = LoadBits(w[v] + line * kLineBytes);
      }
      for (int half = 0; half < 2; ++half) {
        for (int r = 0; r < kRows; ++r) {
          const VU a = SetBits(FourBytes(x[r] + 16 * half + 4 * line));
          for (int v = 0; v < kVecs; ++v) {
            dot[r][v] = DotBytes(dot[r][v], weight[v] & nibbles, a);
          }
        }
        for (int v = 0; v < kVecs; ++v) weight[v] >>= 4;
      }
    }
  }
};

template <typename Bits>
struct GroupTiles {
  template <int kRows, int kPanels>
  static void Tile(const LinearBlock& b,
                   int64_t row,
                   int64_t panel,
                   const FetchAhead& ahead) {
    constexpr int kVecs = kPanels * kPanelVecs;
    Row x[kRows];
    for (int r = 0; r < kRows; ++r) x[r] = RowAt(b, row + r);
    const char* base[kPanels];
    for (int p = 0; p < kPanels; ++p) {
      base[p] =
          static_cast<const char*>(b.panels) + (panel + p) * b.panel_bytes;
    }
    VF acc[kRows][kVecs] = {};
    for (int64_t group = 0; group < b.steps; ++group) {
      const int64_t offset = group * Bits::kBytes;
      const char* w[kVecs];
      for (int v = 0; v < kVecs; ++v) {
        w[v] = base[v / kPanelVecs] + offset + v % kPanelVecs * kVecBytes;
      }
      const int64_t fetched = ahead.At(group);
      for (int p = 0; p < kPanels && fetched > 0; ++p) {
        for (int64_t at = 0; at < Bits::kBytes; at += kLineBytes) {
          __builtin_prefetch(base[p] + offset + fetched + at);
        }
      }
      const char* quants[kRows];
      VI dot[kRows][kVecs];
      for (int r = 0; r < kRows; ++r) {
        quants[r] = x[r].quants + group * kGroup;
        const VI start = SetInt(Bits::Start(x[r], group));
        for (int v = 0; v < kVecs; ++v) dot[r][v] = start;
      }
      Bits::template Sum<kRows, kVecs>(quants, w, dot);
      for (int v = 0; v < kVecs; ++v) {
        const char* scales = base[v / kPanelVecs] + offset + Bits::kBytes -
                             kLineBytes + v % kPanelVecs * kVecBytes / 2;
        const VF scale = LoadHalves(scales);
        const VF minimum = LoadHalves(scales + kLineBytes / 2);
        for (int r = 0; r < kRows; ++r) {
          const VF both = scale * Set(x[r].scale[group]);
          acc[r][v] = Fma(ToFloat(dot[r][v]), both, acc[r][v]);
          acc[r][v] = Fma(minimum, Set(x[r].sum[group]), acc[r][v]);
        }
      }
    }
    StoreTile(b, row, panel, acc);
  }
};

void LinearQ8(const LinearBlock& block) { Linear<GroupTiles<Bits8>>(block); }
void LinearQ4(const LinearBlock& block) { Linear<GroupTiles<Bits4>>(block); }

constexpr int kGroupVecs = static_cast<int>(kGroup) / kLanes;

// One group: p to `quants`, the rest to the arrays.
void QuantizeGroup(const float* x,
                   signed char* quants,
                   float* scale,
                   float* sum,
                   int32_t* zero) {
  VF value[kGroupVecs];
  // Of the magnitudes' bits, as integers: those of infinity and NaN are the
  // largest.
  VI largest = {};
  for (int v = 0; v < kGroupVecs; ++v) {
    value[v] = Load(x + v * kLanes);
    const VI bits =
        reinterpret_cast<VI>(FloatToBits(value[v]) & SetBits(0x7FFFFFFF));
    largest = bits > largest ? bits : largest;
  }
  int32_t most = 0;
  for (int i = 0; i < kLanes; ++i) most = largest[i] > most ? largest[i] : most;
  float magnitude;
  __builtin_memcpy(&magnitude, &most, sizeof(magnitude));
  *scale = magnitude / 127.0F;
  *sum = 0.0F;
  *zero = 0;
  if (!(magnitude > 1.5e-36F) || most >= 0x7F800000) {
    *scale = most >= 0x7F800000 ? __builtin_nanf("") : 0.0F;
    __builtin_memset(quants, 0, kGroup);
    return;
  }
  const VF inverse = Set(127.0F / magnitude);
  // Adding 1.5 * 2^23 rounds to nearest even, into the low bits.
  const VF shift = Set(12582912.0F);
  VI total = {};
  for (int v = 0; v < kGroupVecs; ++v) {
    const VF shifted = value[v] * inverse + shift;
    const VU bits = FloatToBits(shifted);
    total += reinterpret_cast<VI>(bits) - SetInt(0x4B400000);
    const VB bytes = __builtin_convertvector(bits, VB);
    __builtin_memcpy(quants + v * kLanes, &bytes, sizeof(bytes));
  }
  int32_t count = 0;
  for (int i = 0; i < kLanes; ++i) count += total[i];
  *sum = *scale * static_cast<float>(count);
  *zero = -128 * count;
}

void QuantizeRow(const float* x, int64_t k, void* out) {
  const int64_t groups = (k + kGroup - 1) / kGroup;
  auto* quants = static_cast<signed char*>(out);
  auto* scale = reinterpret_cast<float*>(quants + groups * kGroup);
  float* sum = scale + groups;
  auto* zero = reinterpret_cast<int32_t*>(sum + groups);
  for (int64_t g = 0; g < groups; ++g) {
    const float* from = x + g * kGroup;
    float last[kGroup];
    if (k - g * kGroup < kGroup) {
      const auto left = static_cast<unsigned long>(k - g * kGroup);
      __builtin_memset(last, 0, sizeof(last));
      __builtin_memcpy(last, from, left * sizeof(float));
      from = last;
    }
    QuantizeGroup(from, quants + g * kGroup, scale + g, sum + g, zero + g);
  }
}

}  // namespace

extern const GroupKernels kGroupKernels;
const GroupKernels kGroupKernels = {
    .linear_q8 = LinearQ8,
    .linear_q4 = LinearQ4,
    .quantize_row = QuantizeRow,
};

}  // namespace kf::cpu::KF_SIMD_NS
