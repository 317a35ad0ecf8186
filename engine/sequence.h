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
  // The last three are copied for each sequence of a group: what is alike in
  // all of them they have in common, so that a request that waits is not `n`
  // times as large.
  Sequence(SequenceGroup& owner,
           const Request& request,
           uint32_t place,
           const IncrementalDecoder& text,
           const StopMatcher& stops,
           const std::optional<TokenHistory>& prompt)
      : group(owner),
        index(place),
        stream(request.beam ? 0 : request.first_stream + place),
        history(prompt),
        decoder(text),
        matcher(stops) {}

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
