#include "engine/sequence_rules.h"

#include <algorithm>
#include <limits>

#include "absl/strings/str_cat.h"

namespace kf::engine {
namespace {

// (2^31)^10 is far below the largest double: no score overflows.
constexpr double kMaxLengthPenalty = 10.0;

struct Field {
  const char* name;
  bool is_set;
};

// Beams are ranked by probability alone, of raw logits.
absl::Status CheckBesideBeam(const Request& request) {
  const SamplingParams& s = request.sampling;
  const StoppingParams& stopping = request.stopping;
  const Field fields[] = {
      {"sampling.temperature", s.temperature != 0.0},
      {"sampling.top_k", s.top_k != 0},
      {"sampling.top_p", s.top_p != 0.0},
      {"sampling.min_p", s.min_p != 0.0},
      {"sampling.typical_p", s.typical_p != 0.0},
      {"sampling.repetition_penalty", s.repetition_penalty != 0.0},
      {"sampling.presence_penalty", s.presence_penalty != 0.0},
      {"sampling.frequency_penalty", s.frequency_penalty != 0.0},
      {"sampling.logit_bias", !s.logit_bias.empty()},
      {"sampling.n", request.samples > 1},
      {"stopping.min_new_tokens", stopping.min_new_tokens != 0},
      {"stopping.stop", !stopping.stop.empty()},
      {"stopping.stop_token_ids", !stopping.stop_token_ids.empty()},
      {"stopping.include_stop", stopping.include_stop},
      {"output.logprobs", request.output.logprobs},
      {"forced_tokens", !request.forced_tokens.empty()},
  };
  for (const Field& field : fields) {
    if (!field.is_set) continue;
    return absl::InvalidArgumentError(absl::StrCat(
        field.name,
        ": set, but sampling.beam is too, which goes with max_new_tokens, "
        "ignore_eos and cache options only"));
  }
  if (request.cache.policy == CachePolicy::kQuest) {
    return absl::InvalidArgumentError(
        "sampling.beam: set, but cache.policy is QUEST, which has no beams");
  }
  return absl::OkStatus();
}

absl::Status CheckBeam(const Request& request, int32_t vocabulary) {
  const BeamParams& beam = *request.beam;
  // Each beam must find a token to go on with, though another one ends it.
  const uint32_t widest = std::max(1U, static_cast<uint32_t>(vocabulary) / 2);
  if (beam.width < 1 || beam.width > widest) {
    return absl::InvalidArgumentError(absl::StrCat(
        "sampling.beam.width: ", beam.width, ", want 1 to ", widest));
  }
  if (!(beam.length_penalty >= -kMaxLengthPenalty &&
        beam.length_penalty <= kMaxLengthPenalty)) {
    return absl::InvalidArgumentError(
        absl::StrCat("sampling.beam.length_penalty: ", beam.length_penalty,
                     ", want -10 to 10"));
  }
  return CheckBesideBeam(request);
}

}  // namespace

absl::Status CheckSequences(const Request& request, int32_t vocabulary) {
  if (request.samples < 1) {
    return absl::InvalidArgumentError("sampling.n: 0, want at least 1");
  }
  if (request.beam) return CheckBeam(request, vocabulary);
  if (request.samples > 1 && !request.forced_tokens.empty()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "sampling.n: ", request.samples, ", want 1 with forced_tokens"));
  }
  return absl::OkStatus();
}

int32_t CountSequences(const Request& request) {
  const uint32_t count = request.beam ? request.beam->width : request.samples;
  return static_cast<int32_t>(
      std::min<uint32_t>(count, std::numeric_limits<int32_t>::max()));
}

void FixSequences(const Request& request, RequestSizes& sizes) {
  sizes.sequences = CountSequences(request);
  // Where nothing is evicted, nobody writes to the prompt's pages again.
  const CachePolicy policy = request.cache.policy;
  const bool keeps_all =
      policy == CachePolicy::kFull || policy == CachePolicy::kQuest;
  sizes.shares_prompt = sizes.sequences > 1 && keeps_all;
  // A beam search would have to be searched again: it has its room reserved.
  sizes.grows = keeps_all && !request.beam.has_value();
}

}  // namespace kf::engine
