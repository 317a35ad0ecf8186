// Cuts prompts to their budget on the device: Compact of kernels/backend.h.
//
// Three steps, each a launch: sum the scores of all heads (where one choice
// serves all), choose by radix select, move what stays to the front in order of
// position. Reads the scores five times and each kept row of K and V once;
// bound by latency for a short prompt, by memory for a long one, and a small
// part of a prefill either way.
#pragma once

#include <cstdint>

#include "kernels/core/score_options.h"
#include "kernels/cuda/page_layout.h"
#include "kernels/cuda/stream.h"

namespace kf::cuda {

// One layer of a prompt: CompactLayer of backend.h, its pointers in device
// memory.
struct CompactItem {
  PageList from;  // position p is slot p
  PageList to;    // apart from `from`, or in place: its first pages
  int32_t* free_slot = nullptr;  // [G], out: min(budget, tokens)
};

// All pointers are device memory.
struct CompactWork {
  PageLayout layout;
  const CompactItem* items = nullptr;  // [layers]
  int32_t layers = 0;
  int32_t tokens = 0;     // n >= 1, of the prompt
  int32_t budget = 0;     // k >= 1
  int32_t recent = 0;     // w, 0 .. k
  bool shared = false;    // one choice for all heads of all layers
  bool in_place = false;  // of every layer, or of none
  ScoreAge age;
  float score_factor = 1.0F;
  // Working memory: positions that stay, [choices][min(budget, tokens)] with
  // one choice if `shared`, else layers * G; and, if `shared`, [tokens] sums.
  int32_t* kept = nullptr;
  float* sums = nullptr;
};

void Compact(gpu::Stream stream, const CompactWork& work);

}  // namespace kf::cuda
