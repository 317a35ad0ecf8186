// Turns rows of logits into tokens on the device: bias, penalties, masks,
// temperature, top-k, top-p, min-p and the draw of docs/sampling.md, and what a
// log-probability is made of.
//
// The arithmetic is that of engine/sampling, operation by operation and sum by
// sum, so a row gives the token that the engine's own sampler gives. A block
// has a row. Bound by latency; a vocabulary of 128k is read about ten times,
// out of L2.
#pragma once

#include <cstdint>

#include "kernels/core/sample_row.h"
#include "kernels/cuda/stream.h"

namespace kf::cuda {

// More than so many tokens that pass a filter before it is full leave a row
// undecided, for the host's sampler. As is a row with typical_p, which no item
// here has.
inline constexpr int32_t kMostCandidates = 2048;

// SampleRow of backend.h, its pointers in device memory.
struct SampleItem {
  const float* logits = nullptr;         // [vocabulary]
  const LogitChange* changes = nullptr;  // [change_count]
  const int32_t* forbidden = nullptr;    // [forbidden_count]
  int32_t change_count = 0;
  int32_t forbidden_count = 0;
  SampleOptions options;
  // Out, if top_logprobs: the most probable ids, best first, and their logits.
  int32_t* top_ids = nullptr;
  float* top_logits = nullptr;
};

struct SampleWork {
  const SampleItem* items = nullptr;  // [rows]
  int32_t rows = 0;
  int32_t vocabulary = 0;
  SampledToken* out = nullptr;  // [rows]
  // Working memory, SampleWords(vocabulary) * rows of 4 bytes, 8-byte aligned.
  uint32_t* memory = nullptr;
};

// Working memory of a row, in words.
int64_t SampleWords(int32_t vocabulary);

void Sample(gpu::Stream stream, const SampleWork& work);

}  // namespace kf::cuda
