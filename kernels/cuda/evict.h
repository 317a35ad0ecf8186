// What follows a decode step whose eviction was deferred: AddRowScores and
// Evict of kernels/backend.h.
#pragma once

#include <cstdint>

#include "kernels/core/score_options.h"
#include "kernels/cuda/page_layout.h"
#include "kernels/cuda/stream.h"

namespace kf::cuda {

// All pointers are device memory.
struct AddRowScoresWork {
  PageLayout layout;
  int32_t held = 0;  // before this step
  // The beams' caches, that have positions and scores in common: >= 1. Where
  // two have a page in common, it is at the same place of both lists.
  const PageList* caches = nullptr;
  int32_t cache_count = 0;
  const float* const* row_scores = nullptr;  // each [G, held + 1]
  int32_t row_count = 0;
};

// Adds the rows, in order, to the scores of the first cache; the sums become
// the scores of all.
void AddRowScores(gpu::Stream stream, const AddRowScoresWork& work);

// One layer: SharedLayer of backend.h, of which only the first cache is read.
struct EvictItem {
  PageList cache;
  int32_t* free_slot = nullptr;  // [G], out
};

struct EvictWork {
  PageLayout layout;
  const EvictItem* items = nullptr;  // [layers]
  int32_t layers = 0;
  int32_t position = 0;  // of the newest token
  int32_t held = 0;      // before this step, <= budget
  int32_t budget = 0;
  int32_t recent = 0;
  bool shared = false;
  ScoreAge age;
  float* sums = nullptr;  // working memory if `shared`: [held + 1]
};

// free_slot becomes the victim's, or held + 1 where all stay.
void Evict(gpu::Stream stream, const EvictWork& work);

}  // namespace kf::cuda
