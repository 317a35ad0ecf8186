// Collects one streamed answer and says how it went.
#pragma once

#include <chrono>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "keyformer/v1/generation.pb.h"

namespace kf::tools {

// Thread-compatible.
class StreamResult {
 public:
  using Clock = std::chrono::steady_clock;

  explicit StreamResult(Clock::time_point sent) : sent_(sent), last_(sent) {}

  void Add(const keyformer::v1::GenerateChunk& chunk, Clock::time_point now);

  const std::string& text() const { return text_; }
  keyformer::v1::FinishReason finish_reason() const { return finish_reason_; }

  // From sending to the first token; 0 if there was none.
  double FirstTokenMs() const;
  // Tokens after the first chunk over the time since it: the speed of decoding
  // as the client sees it. 0 if there was one chunk only.
  double TokensPerSecond() const;

  // The block that a person reads after the answer. `status` is the RPC's.
  std::string Summary(const absl::Status& status) const;
  // One line of it.
  std::string ShortSummary() const;
  // A table of the log-probabilities; empty if none were asked for.
  std::string LogprobTable() const;
  nlohmann::json ToJson() const;

 private:
  Clock::time_point sent_;
  Clock::time_point first_;
  Clock::time_point last_;
  bool started_ = false;
  size_t first_tokens_ = 0;  // tokens in the first chunk that had any
  std::string request_id_;
  std::string text_;
  std::vector<uint32_t> token_ids_;
  std::vector<keyformer::v1::TokenLogprob> logprobs_;
  std::vector<keyformer::v1::TokenLogprob> prompt_logprobs_;
  keyformer::v1::FinishReason finish_reason_ =
      keyformer::v1::FINISH_REASON_NOT_FINISHED;
  std::string stop_string_;
  keyformer::v1::Usage usage_;
  uint64_t seed_ = 0;
  uint64_t noise_seed_ = 0;
};

// "EOS", "LENGTH", ...
std::string FinishReasonText(keyformer::v1::FinishReason reason);

}  // namespace kf::tools
