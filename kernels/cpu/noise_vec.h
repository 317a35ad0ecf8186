// Keyformer's noise and the softmax of one row, for the SIMD level of the
// including file (vec.h).
#pragma once

#include <stdint.h>

#include "kernels/cpu/attention_kernels.h"
#include "kernels/cpu/vec.h"

namespace kf::cpu::KF_SIMD_NS {

inline VI Iota() {
  VI lanes{};
  for (int i = 0; i < kLanes; ++i) lanes[i] = i;
  return lanes;
}

inline VI SetInt(int32_t x) {
  return reinterpret_cast<VI>(SetBits(static_cast<uint32_t>(x)));
}

inline VF NegativeInfinity() { return BitsToFloat(SetBits(0xFF800000U)); }

// ln x of normal x > 0, to 1 ulp also near 1. Cephes logf (S. Moshier).
inline VF Log(VF x) {
  const VU bits = FloatToBits(x);
  VI exponent = reinterpret_cast<VI>(bits >> 23) - 126;
  VF m = BitsToFloat((bits & SetBits(0x007FFFFFU)) | SetBits(0x3F000000U));
  const VI low = m < Set(0.707106781186547524F);
  exponent = exponent + low;
  m = (low ? m + m : m) - Set(1.0F);
  const VF e = __builtin_convertvector(exponent, VF);
  const VF z = m * m;
  VF p = Set(7.0376836292e-2F);
  p = Fma(p, m, Set(-1.1514610310e-1F));
  p = Fma(p, m, Set(1.1676998740e-1F));
  p = Fma(p, m, Set(-1.2420140846e-1F));
  p = Fma(p, m, Set(1.4249322787e-1F));
  p = Fma(p, m, Set(-1.6668057665e-1F));
  p = Fma(p, m, Set(2.0000714765e-1F));
  p = Fma(p, m, Set(-2.4999993993e-1F));
  p = Fma(p, m, Set(3.3333331174e-1F));
  VF y = m * z * p;
  y = Fma(e, Set(-2.12194440e-4F), y);
  y = Fma(z, Set(-0.5F), y);
  return Fma(e, Set(0.693359375F), m + y);
}

// 1 / x to 1 ulp, x normal.
inline VF Reciprocal(VF x) {
#if KF_SIMD_LEVEL >= 2
  const VF r = _mm512_rcp14_ps(x);
  return Fma(Fma(-x, r, Set(1.0F)), r, r);
#else
  return Set(1.0F) / x;
#endif
}

inline VF SquareRoot(VF x) {
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
inline VF CosTurns(VF t) {
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

inline VU MixBits(VU x) {
  x = (x ^ (x >> 16)) * SetBits(0x7FEB352DU);
  x = (x ^ (x >> 15)) * SetBits(0x846CA68BU);
  return x ^ (x >> 16);
}

inline VF UnitInterval(VU bits) {
  const VF k = __builtin_convertvector(reinterpret_cast<VI>(bits >> 9), VF);
  return (k + Set(0.5F)) * Set(0x1p-23F);
}

inline VF NoiseU(NoiseWords row, VU key) {
  return UnitInterval(MixBits(MixBits(key ^ SetBits(row.a)) + SetBits(row.b)));
}

// NoiseZeta of noise.h, within 1e-5.
template <int kNoise>
inline VF Zeta(NoiseWords row, VU key) {
  if constexpr (kNoise == kGumbelNoise) {
    return -Log(-Log(NoiseU(row, key)));
  } else if constexpr (kNoise == kGaussianNoise) {
    const VF u2 = NoiseU({row.b, row.a}, key);
    const VF radius = SquareRoot(Set(-2.0F) * Log(NoiseU(row, key)));
    return Fma(radius * CosTurns(u2), Set(1.28254983016186409F),
               Set(0.57721566490153286F));
  } else if constexpr (kNoise == kConstantNoise) {
    return Set(0.57721566490153286F);
  } else {
    return Zero();
  }
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

// Lanes of the vector at i that are below count.
inline VI LiveLanes(int64_t i, int64_t count) {
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
template <int kNoise, bool kUnitTau, typename Positions>
inline RowSums NoisySoftmax(float* x,
                            int64_t count,
                            const Positions& positions,
                            NoiseWords words,
                            float tau,
                            float* noisy) {
  const float max = MaskTailAndMax(x, count);
  const VF inverse_tau = Set(InverseTau(tau));
  const bool own_max = tau < kSmallTau;
  VF sum = Zero();
  VF noisy_sum = Zero();
  VF top = NegativeInfinity();
  for (int64_t i = 0; i < count; i += kLanes) {
    const VF below = Load(x + i) - Set(max);
    const VF e = Exp(below);
    Store(e, x + i);
    sum = sum + e;
    VF numerator;
    if constexpr (kUnitTau && kNoise == kNoNoise) {
      numerator = e;
    } else if constexpr (kUnitTau && kNoise == kGumbelNoise) {
      // exp(x + zeta) = exp(x) / -ln u.
      numerator = e * Reciprocal(-Log(NoiseU(words, positions(i))));
    } else {
      const VF shifted = below + Zeta<kNoise>(words, positions(i));
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

template <typename Positions>
inline RowSums ScoredSoftmax(const ScoreSpec& score,
                             float* x,
                             int64_t count,
                             const Positions& positions,
                             NoiseWords words,
                             float* noisy) {
  const float tau = score.tau;
  const bool unit = tau == 1.0F;
  switch (score.noise) {
    case kGumbelNoise:
      return unit ? NoisySoftmax<kGumbelNoise, true>(x, count, positions, words,
                                                     tau, noisy)
                  : NoisySoftmax<kGumbelNoise, false>(x, count, positions,
                                                      words, tau, noisy);
    case kGaussianNoise:
      return NoisySoftmax<kGaussianNoise, false>(x, count, positions, words,
                                                 tau, noisy);
    case kConstantNoise:
      return NoisySoftmax<kConstantNoise, false>(x, count, positions, words,
                                                 tau, noisy);
    default:
      return unit ? NoisySoftmax<kNoNoise, true>(x, count, positions, words,
                                                 tau, noisy)
                  : NoisySoftmax<kNoNoise, false>(x, count, positions, words,
                                                  tau, noisy);
  }
}

}  // namespace kf::cpu::KF_SIMD_NS
