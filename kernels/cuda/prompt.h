// What the kernels of a prompt's attention share: PromptAttentionArgs of
// kernels/backend.h, flat and in device memory. They run in this order:
//
//   AppendPrompt      rotates, fills the pages, gathers the queries
//   RotateRankedKeys  where an item has rank_positions
//   AttendPrompt      out, and what a row's scores are made of
//   ScorePrompt       adds the rows' noisy softmax to the pages
//
// A slice of a prompt gives its rows the bits that the whole prompt would:
// tiles start at absolute multiples of their size, and a slice ends on
// kPromptRowTile.
#pragma once

#include <cstdint>

#include "kernels/core/score_options.h"
#include "kernels/cuda/page_layout.h"
#include "kernels/cuda/stream.h"

namespace kf::cuda {

// One item: rows [first_row, first_row + rows) of one prompt. Fields as in
// PromptAttentionItem. Aligned so that the page list is read in one access.
struct alignas(16) PromptItem {
  PageList keys;
  int64_t batch_row = 0;
  // rank_positions alone: the item's first page of PromptArgs::ranked_keys.
  int64_t ranked_page = 0;
  ScoreOptions score;
  int32_t first_row = 0;
  int32_t rows = 0;
  int32_t score_first_row = 0;
  bool rank_positions = false;
};

// What makes the weights of one (row, query head) of the score pass: of key i,
// exp((x + zeta - top) / tau) * inverse_sum, zeta drawn with words (a, b); top
// is the largest x + zeta, or the largest x where they are weighed with
// kUnitGumbel.
struct alignas(16) ScoreRow {
  float top;
  float inverse_sum;
  uint32_t a;
  uint32_t b;
};

// Pointers are device memory. M: rows of all items together.
struct PromptArgs {
  PageLayout layout;        // also says T: float or bf16
  int32_t query_heads = 0;  // H
  int32_t rotary_dim = 0;   // even, 0 .. head_dim
  int32_t layer = 0;
  float scale = 0.0F;  // 1 / sqrt(d)
  // [rotary_dim / 2]: base^(-2 i / rotary_dim), made on the host, so that keys
  // round to the same bits on every machine.
  const double* frequencies = nullptr;
  const float* alibi_slopes = nullptr;  // [H], or null
  const PromptItem* items = nullptr;    // [item_count]
  int32_t item_count = 0;
  int32_t max_rows = 0;  // the largest `rows` of an item
  int32_t max_end = 0;   // the largest first_row + rows
  bool any_ranked = false;
  bool any_scored = false;     // enabled, with a row that is scored
  const float* qkv = nullptr;  // [M, (H + 2 G) d], unrotated
  float* out = nullptr;        // [M, H d]
  // Workspaces, 16-byte aligned.
  unsigned char* queries = nullptr;  // [M, H, dp] T
  ScoreRow* score_rows = nullptr;    // [M, H]; any_scored
  // [pages, G, 16, dp] T; any_ranked. Pages of an item: up to its end.
  unsigned char* ranked_keys = nullptr;
};

}  // namespace kf::cuda
