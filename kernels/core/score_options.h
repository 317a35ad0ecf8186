// How tokens are scored and compared when some are chosen: plain values, which
// kernels take as they are. Part of the interface in kernels/backend.h.
#pragma once

#include <cstdint>

#include "kernels/core/noise.h"

namespace kf {

// How the tokens of one sequence are scored (docs/keyformer.md). A score that
// is NaN counts as infinity where tokens are chosen.
struct ScoreOptions {
  bool enabled = false;  // false: policy full; nothing below is read
  NoiseKind noise = NoiseKind::kGumbel;
  bool resample_once = false;
  uint64_t seed = 0;
  uint32_t stream = 0;  // 0 in the prompt
  float tau = 1.0F;     // of this pass, > 0
};

// Score norm `age`: what is compared when tokens are chosen is the score over
// the number of scored rows that saw the token, a function of its position.
struct ScoreAge {
  bool enabled = false;       // false: sums are compared as they are
  int32_t prompt_tokens = 0;  // n
  int32_t prompt_rows = 0;    // scored: min(score_queries or n, n)
  int32_t decode_rows = 0;    // scored since, this step's included

  // >= 1.
  constexpr int32_t RowsThatSaw(int32_t position) const {
    if (position < prompt_tokens) {
      const int32_t after = prompt_tokens - position;
      return (after < prompt_rows ? after : prompt_rows) + decode_rows;
    }
    const int32_t rows = decode_rows - (position - prompt_tokens);
    return rows > 1 ? rows : 1;
  }
};

}  // namespace kf
