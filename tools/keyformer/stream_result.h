// Collects one streamed answer and says how it went.
#pragma once

#include <chrono>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "keyformer/v1/generation.pb.h"

namespace kf::tools {

// One of the answer's sequences.
struct SequenceResult {
  uint32_t index = 0;
  std::string text;
  std::vector<uint32_t> token_ids;
  std::vector<keyformer::v1::TokenLogprob> logprobs;
  keyformer::v1::FinishReason finish_reason =
      keyformer::v1::FINISH_REASON_NOT_FINISHED;
  std::string stop_string;
  double score = 0.0;  // of a beam
  std::optional<keyformer::v1::CacheReport> report;
  size_t first_tokens = 0;  // tokens in its first chunk that had any
};

// Thread-compatible.
class StreamResult {
 public:
  using Clock = std::chrono::steady_clock;

  explicit StreamResult(Clock::time_point sent) : sent_(sent), last_(sent) {}

  // Returns the sequence that the chunk belongs to.
  const SequenceResult& Add(const keyformer::v1::GenerateChunk& chunk,
                            Clock::time_point now);

  // By index; one at least.
  const std::map<uint32_t, SequenceResult>& sequences() const {
    return sequences_;
  }
  // Of the first one.
  const SequenceResult& front() const { return sequences_.begin()->second; }
  const std::string& text() const { return front().text; }
  const keyformer::v1::Usage& usage() const { return usage_; }
  // Whether any sequence ended as ERROR.
  bool failed() const;

  // From sending to the first token; 0 if there was none.
  double FirstTokenMs() const;
  // The speed of decoding, all sequences together, as the client sees it:
  // tokens after each sequence's first chunk over the time since the first of
  // these. Beams come whole at the end: theirs is by the server's own clock. 0
  // if there was nothing to time.
  double TokensPerSecond() const;

  // The block that a person reads after the answer. `status` is the RPC's.
  std::string Summary(const absl::Status& status) const;
  // One line of it.
  std::string ShortSummary() const;
  // A table of the log-probabilities; empty if none were asked for.
  std::string LogprobTable() const;
  nlohmann::json ToJson() const;

 private:
  size_t TokenCount() const;

  Clock::time_point sent_;
  Clock::time_point first_;
  Clock::time_point last_;
  bool started_ = false;
  std::string request_id_;
  std::map<uint32_t, SequenceResult> sequences_ = {{0, {}}};
  std::vector<keyformer::v1::TokenLogprob> prompt_logprobs_;
  keyformer::v1::Usage usage_;
  uint64_t seed_ = 0;
  uint64_t noise_seed_ = 0;
};

// "EOS", "LENGTH", ...
std::string FinishReasonText(keyformer::v1::FinishReason reason);

}  // namespace kf::tools
