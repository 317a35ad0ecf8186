// How much memory calls take for themselves, at most: what Backend::Reserve
// asks for. Dense products are counted where they are known (dense_calls.h).
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/backend.h"
#include "kernels/cuda/page_layout.h"

namespace kf::cuda {

// Where the parts of a prompt call's working memory are, in bytes.
struct PromptPlaces {
  size_t queries = 0;      // [rows, H, dp] T
  size_t score_rows = 0;   // [rows, H] ScoreRow, if any is scored
  size_t ranked_keys = 0;  // [ranked_pages, G, 16, dp] T
  size_t bytes = 0;
};

PromptPlaces PlacePrompt(const PageLayout& layout,
                         int32_t query_heads,
                         int64_t rows,
                         bool any_scored,
                         int64_t ranked_pages);

struct WorkBytes {
  // Of the largest call but for products; decode attention is done in groups of
  // rows so that it needs no more words of 4 bytes than these.
  size_t workspace = 0;
  int64_t decode_words = 0;
  // Of a call, and of a decode step that becomes a graph. Rare ones are larger:
  // penalties over long texts for many rows, and page lists where many rows
  // have long texts in common.
  size_t descriptors = 0;
  size_t step_descriptors = 0;
};

WorkBytes WorkBytesOf(const WorkLimits& limits);

}  // namespace kf::cuda
