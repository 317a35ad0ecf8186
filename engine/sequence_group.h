// All that the engine knows of one request between Submit and OnEnd: the prompt
// and its passage through the model once, and the sequences that grow from it.
// Plain data, owned by the engine thread.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "engine/beam_search.h"
#include "engine/cache/cache_plan.h"
#include "engine/clock.h"
#include "engine/model/model_config.h"
#include "engine/request.h"
#include "engine/request_validation.h"
#include "engine/scheduler.h"
#include "engine/sequence.h"
#include "engine/token_sink.h"
#include "engine/tokenizer/tokenizer.h"

namespace kf::engine {

struct SequenceGroup {
  SequenceGroup(RequestId request_id,
                Request submitted,
                const RequestSizes& request_sizes,
                std::shared_ptr<TokenSink> results,
                const Tokenizer& tokenizer,
                TimePoint arrived);
  SequenceGroup(const SequenceGroup&) = delete;
  SequenceGroup& operator=(const SequenceGroup&) = delete;

  RequestId id;
  Request request;
  RequestSizes sizes;
  // Shared with the server's stream; the engine's share ends with OnEnd.
  std::shared_ptr<TokenSink> sink;
  uint64_t seed = 0;        // of sampling, drawn if the request has none
  uint64_t noise_seed = 0;  // of the scores' noise

  // Time.
  TimePoint arrival;
  std::optional<TimePoint> admitted;
  std::optional<TimePoint> prompt_done;  // its last row passed the last layer

  // The prompt. It is cut to its budget in the cache of the first sequence.
  std::vector<int32_t> workspace;  // pages, in prefill
  std::vector<TokenLogprob> prompt_logprobs;
  CacheState cache_after_prompt;  // where the request asks for a report
  bool first_sent = false;        // the update with the prompt's part
  // Waits to be admitted again; what has been fed will be replayed.
  bool preempted = false;

  std::vector<TokenId> forbidden;  // below min_new_tokens

  // In order of index; each refers to this group. The ended ones stay.
  std::vector<std::unique_ptr<Sequence>> sequences;

  bool failed = false;  // a row of logits was bad

  // Of a beam search, whose live beams the sequences carry, in order; they
  // share the free slots of the first. Null: samples.
  std::unique_ptr<BeamSearch> beams;
  // What the rows of logits of this step have given.
  std::vector<std::vector<BeamSearch::Continuation>> beam_rows;

  // Sequences that have not ended.
  size_t live() const;
  // That has not ended, if there is one.
  Sequence& first() const;
  // What a replay after preemption feeds again is all in the caches.
  bool replayed() const;
  SchedulerEntry scheduler_entry(const ModelConfig& config) const;
  // The scores of the prompt (step 0), or of a sequence's decode step t = 1, 2,
  // ...
  ScoreOptions score(uint32_t step, uint32_t stream) const;
  int32_t score_first_row() const;
  // k as it is reported: 0 where nothing is evicted.
  uint32_t budget_tokens() const;
  // Of all sequences, the ended ones included.
  Usage usage(TimePoint now) const;
};

}  // namespace kf::engine
