// One generation request and what comes back, as plain data: no proto, no
// threads. Field names and ranges are those of generation.proto; error messages
// name fields by their proto path ("sampling.top_p").
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "engine/clock.h"
#include "kernels/backend.h"
#include "kernels/core/noise.h"

namespace kf::engine {

using TokenId = int32_t;
using RequestId = uint64_t;  // ours, unique in one process; 0 is none

enum class CachePolicy : uint8_t { kFull, kWindow, kH2O, kKeyformer, kQuest };
enum class BudgetBasis : uint8_t { kPrompt, kTotal };
// Who shares one kept set: each (layer, kv head) its own, a layer's heads, all.
enum class SelectionScope : uint8_t { kHead, kLayer, kModel };
enum class CachePositions : uint8_t { kOriginal, kCache };
enum class ScoreNorm : uint8_t { kNone, kAge };

// Cache options of one request after server defaults have been filled in
// (docs/keyformer.md, Sizes).
struct CacheOptions {
  CachePolicy policy = CachePolicy::kKeyformer;
  double ratio = 0.5;                     // (0, 1]; unread if tokens is set
  std::optional<uint32_t> tokens;         // k, >= 1
  double recent_ratio = 0.3;              // [0, 1]
  std::optional<uint32_t> recent_tokens;  // w, <= k
  uint32_t min_tokens = 256;              // >= 1
  BudgetBasis basis = BudgetBasis::kPrompt;
  uint32_t sinks = 4;     // window: first tokens that stay
  double tau_init = 1.0;  // > 0
  double tau_end = 2.0;   // > 0
  NoiseKind noise = NoiseKind::kGumbel;
  bool resample_once = false;
  SelectionScope scope = SelectionScope::kHead;
  CachePositions positions = CachePositions::kOriginal;
  uint32_t score_queries = 0;  // 0: all prompt rows
  bool decode_scores = true;
  std::optional<uint64_t> noise_seed;  // absent: the sampling seed, else 0
  ScoreNorm score_norm = ScoreNorm::kNone;
  uint32_t full_layers = 2;  // quest: the first layers that read everything
  // [layers], >= 0, mean 1: layer l's budget is k times weight l. Empty: all
  // alike.
  std::vector<double> layer_weights;
};

struct SamplingParams {
  double temperature = 0.0;         // [0, inf); 0: greedy
  uint32_t top_k = 0;               // 0: off
  double top_p = 0.0;               // [0, 1]; 0: off
  double min_p = 0.0;               // [0, 1]; 0: off
  double typical_p = 0.0;           // [0, 1]; 0: off
  double repetition_penalty = 0.0;  // >= 0; 0 and 1: off
  double presence_penalty = 0.0;
  double frequency_penalty = 0.0;
  std::optional<uint64_t> seed = {};  // absent: drawn and returned
  std::map<TokenId, double> logit_bias = {};
};

struct BeamParams {
  uint32_t width = 1;           // >= 1
  double length_penalty = 1.0;  // score = logprob / length ^ length_penalty
  bool early_stopping = false;  // ends at `width` finished beams
};

struct StoppingParams {
  std::optional<uint32_t> max_new_tokens;  // absent: the server's default
  uint32_t min_new_tokens = 0;
  std::vector<std::string> stop;  // non-empty strings
  std::vector<TokenId> stop_token_ids;
  bool include_stop = false;  // the stop string stays in the text
  bool ignore_eos = false;
  double time_limit_ms = 0.0;  // 0: off; from arrival
};

// kSummary needs no scores.
enum class CacheReportDetail : uint8_t { kNone, kSummary, kFull };

struct OutputParams {
  bool logprobs = false;
  uint32_t top_logprobs = 0;
  bool prompt_logprobs = false;
  bool echo_prompt = false;          // the prompt's text precedes the answer's
  bool keep_special_tokens = false;  // control tokens appear in the text
};

struct Request {
  std::vector<TokenId> prompt;  // n >= 1 ids, already encoded
  std::string prompt_text;      // for echo_prompt
  SamplingParams sampling;
  uint32_t samples = 1;            // of this prompt, >= 1
  std::optional<BeamParams> beam;  // instead of samples
  StoppingParams stopping;
  CacheOptions cache;
  OutputParams output;
  int32_t priority = 0;                // larger first
  std::vector<TokenId> forced_tokens;  // teacher forcing; empty: none
  std::optional<TimePoint> deadline;   // of the caller
  // Fills Update::cache_report.
  CacheReportDetail cache_report = CacheReportDetail::kNone;
  // For tests: sample i draws, and scores, as sample first_stream + i would.
  uint32_t first_stream = 0;
};

enum class FinishReason : uint8_t {
  kNotFinished,
  kEos,
  kStop,
  kLength,
  kContext,
  kTimeLimit,
  kCancelled,
  kError,
};

struct TokenLogprob {
  TokenId id = 0;
  double logprob = 0.0;  // of the raw logits, before bias, penalties, filters
  uint32_t rank = 0;     // 1 = most probable
  std::vector<TokenLogprob> top;
};

struct Usage {
  uint32_t prompt_tokens = 0;
  uint32_t generated_tokens = 0;
  uint32_t cache_budget_tokens = 0;  // k; 0 for full
  uint32_t evicted_tokens = 0;       // per kv head: n + tokens fed - held
  double queue_ms = 0.0;
  double prefill_ms = 0.0;
  double decode_ms = 0.0;
  uint32_t max_new_tokens = 0;  // T
};

// What a cache holds: [layers][G].
using CacheState = std::vector<std::vector<HeldTokens>>;

// How many of the heads of all layers hold each prompt token.
struct Retention {
  uint32_t heads = 0;             // L x G
  std::vector<uint32_t> holders;  // [n]
};

// What a cache held after the prompt, each layer as it was cut, and at the end:
// the last token was never fed and is not in it.
struct CacheReport {
  uint32_t budget_tokens = 0;  // k; 0: nothing is evicted (full, quest)
  uint32_t recent_tokens = 0;  // w
  Retention kept_after_prompt;
  Retention kept_at_end;
  // kFull; a summary is no longer than the prompt, whoever waits to read it.
  CacheState after_prompt;
  CacheState at_end;
};

// One step's news of one sequence. A request's first carries the prompt's part.
struct Update {
  uint32_t index = 0;  // of the sample; of the beam, best first
  bool first = false;
  std::string text;  // whole UTF-8 characters
  // One a step: without memory of its own.
  absl::InlinedVector<TokenId, 4> token_ids;
  std::vector<TokenLogprob> logprobs;  // one per id, when asked for
  std::vector<TokenLogprob>
      prompt_logprobs;  // first only; from the second token
  FinishReason finish_reason = FinishReason::kNotFinished;  // set: the last one
  std::string stop_string;
  double score = 0.0;                       // last, of a beam
  Usage usage;                              // valid in the first and the last
  uint64_t seed = 0;                        // first
  uint64_t noise_seed = 0;                  // first
  std::optional<CacheReport> cache_report;  // last, when asked for
};

}  // namespace kf::engine
