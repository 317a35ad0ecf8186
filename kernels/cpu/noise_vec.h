// Keyformer's noise and the softmax of one row, for the SIMD level of the
// including file (vec.h).
#pragma once

#include <stdint.h>

#include "kernels/cpu/attention_kernels.h"
#include "kernels/cpu/vec.h"

namespace kf::cpu::KF_SIMD_NS {

KF_SIMD_INLINE VI Iota() {
  VI lanes{};
  for (int i = 0; i < kLanes; ++i) lanes[i] = i;
  return lanes;
}

KF_SIMD_INLINE VF NegativeInfinity() {
  return BitsToFloat(SetBits(0xFF800000U));
}

// x = 2^e (1 + m) with 1 + m in [sqrt(1/2), sqrt(2)); x normal and > 0.
struct LogParts {
  VF e;
  VF m;
};
KF_SIMD_INLINE LogParts SplitForLog(VF x) {
  const VU bits = FloatToBits(x);
  const VU scaled = bits - SetBits(0x3F3504F3U);
  return {__builtin_convertvector(reinterpret_cast<VI>(scaled) >> 23, VF),
          BitsToFloat(bits - (scaled & SetBits(0xFF800000U))) - Set(1.0F)};
}

// -ln x by a minimax polynomial of ln(1 + m) / m: relative error below 1.5e-6,
// also near 1.
KF_SIMD_INLINE VF MinusLog(VF x) {
  const LogParts parts = SplitForLog(x);
  const VF m = parts.m;
  VF p = Set(-0.118961044F);
  p = Fma(p, m, Set(0.186678544F));
  p = Fma(p, m, Set(-0.204963297F));
  p = Fma(p, m, Set(0.249097437F));
  p = Fma(p, m, Set(-0.333145082F));
  p = Fma(p, m, Set(0.500011146F));
  p = Fma(p, m, Set(-1.00000095F));
  return Fma(parts.e, Set(-0.693147181F), p * m);
}

// -ln x where an absolute error below 2e-6 will do.
KF_SIMD_INLINE VF MinusLogRough(VF x) {
  const LogParts parts = SplitForLog(x);
  const VF m = parts.m;
  VF p = Set(0.143198505F);
  p = Fma(p, m, Set(-0.223300695F));
  p = Fma(p, m, Set(0.254724652F));
  p = Fma(p, m, Set(-0.332258731F));
  p = Fma(p, m, Set(0.499850512F));
  p = Fma(p, m, Set(-1.00001276F));
  return Fma(parts.e, Set(-0.693147181F), p * m);
}

KF_SIMD_INLINE VF SquareRoot(VF x) {
#if KF_SIMD_LEVEL == 0
  VF r = x;
  for (int i = 0; i < kLanes; ++i) r[i] = __builtin_sqrtf(x[i]);
  return r;
#elif KF_SIMD_LEVEL == 1
  return _mm256_sqrt_ps(x);
#else
  return _mm512_sqrt_ps(x);
#endif
}

// cos(2 pi t), t in (0, 1), to 1e-7: folded to sin(2 pi w), |w| <= 1/4.
KF_SIMD_INLINE VF CosTurns(VF t) {
  const VF half = t - Set(0.5F);
  const VF w = (half < Zero() ? -half : half) - Set(0.25F);
  const VF x = w * Set(6.283185307179586F);
  const VF z = x * x;
  VF p = Set(1.6059043836821613e-10F);
  p = Fma(p, z, Set(-2.5052108385441720e-8F));
  p = Fma(p, z, Set(2.7557319223985893e-6F));
  p = Fma(p, z, Set(-1.9841269841269841e-4F));
  p = Fma(p, z, Set(8.3333333333333333e-3F));
  p = Fma(p, z, Set(-1.6666666666666667e-1F));
  return Fma(p * z, x, x);
}

KF_SIMD_INLINE VU MixBits(VU x) {
  x = (x ^ (x >> 16)) * SetBits(0x7FEB352DU);
  x = (x ^ (x >> 15)) * SetBits(0x846CA68BU);
  return x ^ (x >> 16);
}

// UnitInterval of noise.h: 1 + k 2^-23 less 1 - 2^-24, both exact.
KF_SIMD_INLINE VF UnitInterval(VU bits) {
  return BitsToFloat((bits >> 9) | SetBits(0x3F800000U)) - Set(1.0F - 0x1p-24F);
}

KF_SIMD_INLINE VF NoiseU(NoiseWords row, VU key) {
  return UnitInterval(MixBits(MixBits(key ^ SetBits(row.a)) + SetBits(row.b)));
}

// Of one row over some keys: sum = sum exp(x - max), noisy_sum = sum
// exp((x - max + zeta - largest) / tau). `largest` stays apart from max: their
// sum would round at max's size, and tau may be small against that.
struct RowSums {
  float max;
  float sum;
  float largest;
  float noisy_sum;
};

// Below this the largest noise (16.7) over tau could overflow exp, and the row
// needs a maximum of its own; above, the largest x serves.
inline constexpr float kSmallTau = 0.25F;
// A smaller tau is as good as 0: the largest x + zeta takes all.
inline constexpr float kMaxInverseTau = 1e30F;

inline float InverseTau(float tau) {
  const float inverse = 1.0F / tau;
  return inverse < kMaxInverseTau ? inverse : kMaxInverseTau;
}

// Positions of a prompt's keys.
struct CountedPositions {
  VU operator()(int64_t i) const {
    return reinterpret_cast<VU>(Iota() + SetInt(static_cast<int32_t>(i)));
  }
};
struct ListedPositions {
  const int32_t* list;
  VU operator()(int64_t i) const { return LoadBits(list + i); }
};

// zeta of `count` keys to `out`, to the end of the last vector: NoiseZeta of
// noise.h, within 1e-5. With kUnitGumbel, e^-zeta = -ln u. Each step has a loop
// of its own: a vector's steps wait for each other, and only in a short loop
// does the machine find the next vectors to fill the waiting.
template <int kNoise, bool kUnitGumbel, typename Positions, typename Meanwhile>
inline void DrawNoise(const Positions& positions,
                      NoiseWords words,
                      int64_t count,
                      float* out,
                      const Meanwhile& meanwhile) {
  if constexpr (kNoise == kGumbelNoise || kNoise == kGaussianNoise) {
    for (int64_t i = 0; i < count; i += kLanes) {
      Store(NoiseU(words, positions(i)), out + i);
      meanwhile();
    }
    for (int64_t i = 0; i < count; i += kLanes) {
      Store(MinusLog(Load(out + i)), out + i);
      meanwhile();
    }
  }
  if constexpr (kNoise == kGumbelNoise && !kUnitGumbel) {
    for (int64_t i = 0; i < count; i += kLanes) {
      Store(MinusLogRough(Load(out + i)), out + i);
      meanwhile();
    }
  } else if constexpr (kNoise == kGaussianNoise) {
    for (int64_t i = 0; i < count; i += kLanes) {
      const VF turns = NoiseU({words.b, words.a}, positions(i));
      const VF radius = SquareRoot(Load(out + i) + Load(out + i));
      Store(Fma(radius * CosTurns(turns), Set(1.28254983016186409F),
                Set(0.57721566490153286F)),
            out + i);
    }
  } else if constexpr (kNoise == kConstantNoise || kNoise == kNoNoise) {
    const VF zeta =
        kNoise == kConstantNoise ? Set(0.57721566490153286F) : Zero();
    for (int64_t i = 0; i < count; i += kLanes) Store(zeta, out + i);
  }
}

// Lanes of the vector at i that are below count.
KF_SIMD_INLINE VI LiveLanes(int64_t i, int64_t count) {
  return Iota() < SetInt(static_cast<int32_t>(count - i));
}

// The largest x; writes -inf over what follows x[count) in its last vector.
inline float MaskTailAndMax(float* x, int64_t count) {
  VF top = NegativeInfinity();
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) top = Max(Load(x + i), top);
  if (i < count) {
    const VF v = LiveLanes(i, count) ? Load(x + i) : NegativeInfinity();
    Store(v, x + i);
    top = Max(v, top);
  }
  return ReduceMax(top);
}

// x[0, count) -> exp(x - max), zero to the end of the last vector.
inline RowSums CleanSoftmax(float* x, int64_t count) {
  const float max = MaskTailAndMax(x, count);
  VF sum = Zero();
  for (int64_t i = 0; i < count; i += kLanes) {
    const VF e = Exp(Load(x + i) - Set(max));
    Store(e, x + i);
    sum = sum + e;
  }
  return {max, ReduceAdd(sum), 0.0F, 0.0F};
}

// As CleanSoftmax, and exp((x - max + zeta - largest) / tau) to `noisy`.
template <int kNoise, bool kUnitTau, typename Positions, typename Meanwhile>
inline RowSums NoisySoftmax(float* x,
                            int64_t count,
                            const Positions& positions,
                            NoiseWords words,
                            float tau,
                            float* noisy,
                            const Meanwhile& meanwhile) {
  constexpr bool kUnitNone = kUnitTau && kNoise == kNoNoise;
  constexpr bool kUnitGumbel = kUnitTau && kNoise == kGumbelNoise;
  const float max = MaskTailAndMax(x, count);
  const VF inverse_tau = Set(InverseTau(tau));
  const bool own_max = tau < kSmallTau;
  if constexpr (!kUnitNone) {
    DrawNoise<kNoise, kUnitGumbel>(positions, words, count, noisy, meanwhile);
  }
  VF sum = Zero();
  VF noisy_sum = Zero();
  VF top = NegativeInfinity();
  for (int64_t i = 0; i < count; i += kLanes) {
    meanwhile();
    const VF below = Load(x + i) - Set(max);
    const VF e = Exp(below);
    Store(e, x + i);
    sum = sum + e;
    VF numerator;
    if constexpr (kUnitNone) {
      numerator = e;
    } else if constexpr (kUnitGumbel) {
      // exp(x + zeta) = exp(x) / -ln u.
      numerator = e / Load(noisy + i);
    } else {
      const VF shifted = below + Load(noisy + i);
      if (own_max) {
        top = Max(shifted, top);
        Store(shifted, noisy + i);
        continue;
      }
      numerator = Exp(shifted * inverse_tau);
    }
    Store(numerator, noisy + i);
    noisy_sum = noisy_sum + numerator;
  }
  float largest = 0.0F;
  if (!kUnitTau && own_max) {
    largest = ReduceMax(top);
    for (int64_t i = 0; i < count; i += kLanes) {
      const VF numerator = Exp((Load(noisy + i) - Set(largest)) * inverse_tau);
      Store(numerator, noisy + i);
      noisy_sum = noisy_sum + numerator;
    }
  }
  return {max, ReduceAdd(sum), largest, ReduceAdd(noisy_sum)};
}

template <typename Positions, typename Meanwhile>
inline RowSums ScoredSoftmax(const ScoreSpec& score,
                             float* x,
                             int64_t count,
                             const Positions& positions,
                             NoiseWords words,
                             float* noisy,
                             const Meanwhile& meanwhile) {
  const float tau = score.tau;
  const bool unit = tau == 1.0F;
  switch (score.noise) {
    case kGumbelNoise:
      return unit ? NoisySoftmax<kGumbelNoise, true>(x, count, positions, words,
                                                     tau, noisy, meanwhile)
                  : NoisySoftmax<kGumbelNoise, false>(
                        x, count, positions, words, tau, noisy, meanwhile);
    case kGaussianNoise:
      return NoisySoftmax<kGaussianNoise, false>(x, count, positions, words,
                                                 tau, noisy, meanwhile);
    case kConstantNoise:
      return NoisySoftmax<kConstantNoise, false>(x, count, positions, words,
                                                 tau, noisy, meanwhile);
    default:
      return unit ? NoisySoftmax<kNoNoise, true>(x, count, positions, words,
                                                 tau, noisy, meanwhile)
                  : NoisySoftmax<kNoNoise, false>(x, count, positions, words,
                                                  tau, noisy, meanwhile);
  }
}

}  // namespace kf::cpu::KF_SIMD_NS
