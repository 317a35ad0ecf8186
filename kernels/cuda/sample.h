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

#include "kernels/cuda/stream.h"

namespace kf::cuda {

// What changes the logit of one id; ids of a row are distinct.
struct LogitChange {
  int32_t id = 0;
  bool banned = false;     // by the lowest bias
  bool seen = false;       // in the prompt or the answer: penalties apply
  double bias = 0.0;       // 0 if banned
  uint32_t generated = 0;  // times, in the answer
};

enum class SampleState : uint8_t {
  kChosen,
  kBad,  // a NaN, +inf, or nothing finite: no token
  // More than kMostCandidates tokens pass a filter before it is full: for the
  // host's sampler. As are rows with typical_p, which no item here has.
  kUndecided,
};

inline constexpr int32_t kMostCandidates = 2048;
inline constexpr int32_t kMostTopLogprobs = 64;

struct SampledToken {
  SampleState state = SampleState::kBad;
  int32_t id = 0;
  // If `logprobs`, of the raw row: the logprob is (logit - largest) -
  // ln(exp_sum).
  uint32_t rank = 0;  // from 1
  float logit = 0.0F;
  float largest = 0.0F;
  double exp_sum = 0.0;
};

// One row. Pointers are device memory; ranges as ValidateRequest allows, 0:
// off.
struct SampleItem {
  const float* logits = nullptr;         // [vocabulary]
  const LogitChange* changes = nullptr;  // [change_count]
  const int32_t* forbidden = nullptr;    // [forbidden_count]: may not be chosen
  int32_t change_count = 0;
  int32_t forbidden_count = 0;
  double temperature = 0.0;  // 0: the largest
  double top_p = 0.0;
  double min_p = 0.0;
  double repetition_penalty = 0.0;
  double presence_penalty = 0.0;
  double frequency_penalty = 0.0;
  uint64_t seed = 0;
  uint32_t step = 0;  // tokens generated before
  uint32_t stream = 0;
  uint32_t top_k = 0;
  bool logprobs = false;
  int32_t top_logprobs = 0;  // 0 .. kMostTopLogprobs, <= vocabulary
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
