// One of the sequences that a request grows from its prompt: what it holds, and
// what it has generated. Plain data, owned by its group.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "engine/cache/sequence_cache.h"
#include "engine/clock.h"
#include "engine/request.h"
#include "engine/sampling/sampler.h"
#include "engine/tokenizer/stop_matcher.h"
#include "engine/tokenizer/tokenizer.h"

namespace kf::engine {

struct SequenceGroup;

struct Sequence {
  Sequence(SequenceGroup& owner,
           const Request& request,
           const Tokenizer& tokenizer,
           uint32_t place)
      : group(owner),
        index(place),
        stream(request.beam ? 0 : request.first_stream + place),
        decoder(tokenizer,
                request.output.keep_special_tokens,
                /*at_text_start=*/false),
        matcher(request.stopping.stop, request.stopping.include_stop) {
    if (HasPenalties(request.sampling)) {
      history.emplace().AddPrompt(request.prompt);
    }
  }

  SequenceGroup& group;
  const uint32_t index;     // in the group
  const uint32_t stream;    // of its draws, and of its noise past the prompt
  bool first_sent = false;  // its first update
  bool finished = false;    // it has ended, and holds nothing

  SequenceCache cache;
  int32_t counted = 0;  // tokens it has in the report's sum
  int32_t slot = -1;    // of the free-slot table

  uint32_t generated = 0;
  TokenId next_input = 0;  // the last token, fed by the next decode step
  // All that decode steps have fed, where a replay may need it: of groups that
  // grow.
  std::vector<TokenId> fed_tokens;
  std::optional<TimePoint> last_token;
  std::optional<TokenHistory> history;  // where a penalty reads it
  IncrementalDecoder decoder;
  StopMatcher matcher;
  bool text_ended = false;  // a stop string was found; the matcher is spent
};

}  // namespace kf::engine
