// What every way of attending over a prompt's row tile shares: the softmax of
// its logits, with the score columns, and its output.
#pragma once

#include <stdint.h>

#include "kernels/cpu/attention_kernels.h"
#include "kernels/cpu/noise_vec.h"

namespace kf::cpu::KF_SIMD_NS {
namespace {

inline void ZeroFill(float* x, int64_t from, int64_t to) {
  for (int64_t i = from; i < to; ++i) x[i] = 0.0F;
}

// Softmax of each row over its causal keys; adds the noisy ones to the columns.
// 1 / sum of each row to `inverse`.
inline void TileSoftmax(const PromptTile& tile,
                        int32_t head,
                        int32_t padded_keys,
                        float* inverse) {
  for (int32_t r = 0; r < tile.rows; ++r) {
    float* x = tile.logits + r * tile.logits_stride;
    const int32_t count = tile.first_row + r + 1;
    const bool scored = tile.score.enabled && r >= tile.score_first;
    if (!scored) {
      inverse[r] = 1.0F / CleanSoftmax(x, count).sum;
    } else {
      const RowSums sums = ScoredSoftmax(
          tile.score, x, count, CountedPositions{},
          tile.words[head * kTileRows + r], tile.numerators, [] {});
      inverse[r] = 1.0F / sums.sum;
      const VF share = Set(1.0F / sums.noisy_sum);
      for (int32_t i = 0; i < count; i += kLanes) {
        Store(Fma(Load(tile.numerators + i), share, Load(tile.columns + i)),
              tile.columns + i);
      }
    }
    ZeroFill(x, count, padded_keys);
  }
}

// Row r of `sums` times inverse[r] to the output of query head `head`.
inline void StoreHead(const PromptTile& tile,
                      int32_t head,
                      const float* inverse) {
  const HeadLayout& layout = *tile.layout;
  for (int32_t r = 0; r < tile.rows; ++r) {
    const float* from = tile.sums + int64_t{r} * layout.padded_d;
    float* to = tile.out + r * tile.out_stride + int64_t{head} * layout.d;
    for (int32_t c = 0; c < layout.d; ++c) to[c] = from[c] * inverse[r];
  }
}

}  // namespace
}  // namespace kf::cpu::KF_SIMD_NS
