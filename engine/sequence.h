// All that the engine knows of one request between Submit and OnEnd. Plain
// data, owned by the engine thread.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "engine/cache/cache_plan.h"
#include "engine/cache/sequence_cache.h"
#include "engine/clock.h"
#include "engine/model/model_config.h"
#include "engine/request.h"
#include "engine/request_validation.h"
#include "engine/sampling/sampler.h"
#include "engine/scheduler.h"
#include "engine/token_sink.h"
#include "engine/tokenizer/stop_matcher.h"
#include "engine/tokenizer/tokenizer.h"

namespace kf::engine {

struct Sequence {
  Sequence(RequestId request_id,
           Request submitted,
           const RequestSizes& request_sizes,
           std::shared_ptr<TokenSink> results,
           const Tokenizer& tokenizer,
           TimePoint arrived);

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
  std::optional<TimePoint> last_token;

  // While it runs.
  SequenceCache cache;
  int32_t counted = 0;             // tokens it has in the report's sum
  int32_t slot = -1;               // of the free-slot table
  std::vector<int32_t> workspace;  // pages, in prefill
  CacheReport cache_report;        // filled if the request keeps one

  // What has been generated.
  uint32_t generated = 0;
  TokenId next_input = 0;  // the last token, fed by the next decode step
  std::optional<TokenHistory> history;  // where a penalty reads it
  IncrementalDecoder decoder;
  StopMatcher matcher;
  std::vector<TokenId> forbidden;  // below min_new_tokens
  std::vector<TokenLogprob> prompt_logprobs;
  bool first_sent = false;
  bool text_ended = false;  // a stop string was found; the matcher is spent

  SchedulerEntry scheduler_entry(const ModelConfig& config) const;
  // Whether any score is read: to choose what a decode step will attend to, or
  // by a report.
  bool scored() const;
  // The scores of the prompt (step 0) or of decode step t = 1, 2, ...
  ScoreOptions score(uint32_t step) const;
  int32_t score_first_row() const;
  Usage usage(TimePoint now) const;
};

}  // namespace kf::engine
