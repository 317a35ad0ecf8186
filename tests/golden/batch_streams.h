// 32 unlike streams that arrive at different steps, against each alone.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tests/golden/golden_support.h"

namespace kf::testing {

struct StreamMix {
  uint32_t seed = 1;
  int32_t vocabulary = 0;
  int32_t layers = 0;      // of the model
  int32_t max_prompt = 0;  // tokens
  int32_t min_new = 0;     // tokens
  int32_t max_new = 0;
  int32_t first_new = 0;  // of stream 0, that outlasts the arrivals
  size_t arrivals_per_step = 1;
};

// All policies with all their options, seeds, lengths and sampling drawn from
// the mix's seed.
std::vector<engine::Request> MakeStreams(const StreamMix& mix, size_t count);

// Runs the streams together, new ones as stream 0 gets its tokens, then each
// alone in the same engine, and expects equal bits: tokens, logprobs and what
// the caches hold.
void ExpectStreamsEqualSolo(EngineSetup setup, const StreamMix& mix);

}  // namespace kf::testing
