// Device code: the noise of a score, and the order in which scores are compared
// (docs/keyformer.md, Noise and Selection).
#pragma once

#include <cmath>
#include <cstdint>

#include "kernels/core/noise.h"
#include "kernels/core/score_options.h"
#include "kernels/cuda/gpu.h"

namespace kf::cuda {

// zeta of one key, within 1e-5 of NoiseZeta in noise.h: u is exact in f32, and
// logf, unlike __logf, keeps its relative accuracy where u is near 1.
__device__ inline float Zeta(NoiseKind kind, NoiseRow row, uint32_t key) {
  switch (kind) {
    case NoiseKind::kNone:
      return 0.0F;
    case NoiseKind::kConstant:
      return kGumbelMean;
    case NoiseKind::kGumbel:
      return -logf(-logf(NoiseU(row, key)));
    case NoiseKind::kGaussian:
      // cos(2 pi u2), its argument brought to +-pi, where __cosf is exact to
      // 2^-21 and, unlike cosf, needs no local memory.
      return kGumbelMean - kGumbelStd * sqrtf(-2.0F * logf(NoiseU(row, key))) *
                               __cosf(6.28318531F * (NoiseU2(row, key) - 0.5F));
  }
  return 0.0F;
}

// The two words of a row: a query at `position`, of one query head of a layer.
__device__ inline NoiseRow NoiseWords(const ScoreOptions& score,
                                      int32_t position,
                                      int32_t layer,
                                      int32_t query_head) {
  return MakeNoiseRow(
      score.seed,
      score.resample_once ? kEveryQuery : static_cast<uint32_t>(position),
      static_cast<uint32_t>(layer), static_cast<uint32_t>(query_head),
      score.stream);
}

// What a score is compared by: over the rows that saw the token, if need be.
__device__ inline float RankOf(float score,
                               const ScoreAge& age,
                               int32_t position) {
  return age.enabled ? score / static_cast<float>(age.RowsThatSaw(position))
                     : score;
}

// Larger for a larger rank, whatever its bits: -0 is 0, NaN is infinity.
__device__ inline uint32_t RankBits(float rank) {
  if (rank != rank) rank = INFINITY;
  const uint32_t bits = __float_as_uint(rank + 0.0F);
  return (bits >> 31) != 0 ? ~bits : bits | 0x80000000U;
}

}  // namespace kf::cuda
