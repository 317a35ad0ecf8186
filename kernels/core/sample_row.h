// How a row of logits becomes a token on a backend that can choose it: plain
// values, which kernels take as they are. Part of the interface in
// kernels/backend.h; what they mean is in docs/sampling.md.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace kf {

inline constexpr int32_t kNoToken = -1;
// Of the most probable tokens that a row can be asked for.
inline constexpr int32_t kMostTopLogprobs = 64;

// What changes the logit of one id; ids of a row are distinct.
struct LogitChange {
  int32_t id = 0;
  bool banned = false;     // by the lowest bias
  bool seen = false;       // in the prompt or the answer: penalties apply
  double bias = 0.0;       // 0 if banned
  uint32_t generated = 0;  // times, in the answer
};

// Ranges as the engine's ValidateRequest allows; 0: off.
struct SampleOptions {
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
  // The token, where it is known and only its logprob is wanted: nothing above
  // is read. Below the vocabulary's size.
  int32_t forced = kNoToken;
  bool logprobs = false;
  int32_t top_logprobs = 0;  // 0 .. kMostTopLogprobs, <= vocabulary
};

struct SampleRow {
  const float* logits = nullptr;  // [vocabulary], backend memory
  std::span<const LogitChange> changes;
  std::span<const int32_t> forbidden;  // ids that may not be chosen
  SampleOptions options;
};

enum class SampleState : uint8_t {
  kChosen,
  kBad,        // a NaN, +inf, or nothing finite: no token
  kUndecided,  // the row is one that the backend cannot decide
};

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

struct SampledRow {
  struct Top {
    int32_t id = 0;
    float logit = 0.0F;
  };
  SampledToken token;
  std::vector<Top> top;  // [top_logprobs], the most probable, best first
};

}  // namespace kf
