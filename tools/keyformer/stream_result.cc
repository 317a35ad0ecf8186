#include "tools/keyformer/stream_result.h"

#include <spdlog/fmt/fmt.h>

namespace kf::tools {
namespace {

namespace pb = ::keyformer::v1;
using nlohmann::json;

double Milliseconds(StreamResult::Clock::duration duration) {
  return std::chrono::duration<double, std::milli>(duration).count();
}

json LogprobJson(const pb::TokenLogprob& token) {
  json out = {{"token_id", token.token_id()},
              {"text", token.text()},
              {"logprob", token.logprob()},
              {"rank", token.rank()}};
  for (const pb::TokenLogprob& top : token.top()) {
    out["top"].push_back(LogprobJson(top));
  }
  return out;
}

json LogprobsJson(const std::vector<pb::TokenLogprob>& tokens) {
  json out = json::array();
  for (const pb::TokenLogprob& token : tokens)
    out.push_back(LogprobJson(token));
  return out;
}

// A token's bytes as one printable word: control bytes and halves of characters
// would garble the table.
std::string Quoted(const std::string& bytes) {
  return json(bytes).dump(-1, ' ', false, json::error_handler_t::replace);
}

std::string LogprobLines(const std::vector<pb::TokenLogprob>& tokens) {
  std::string out;
  for (const pb::TokenLogprob& token : tokens) {
    out += fmt::format("{:>8}  {:>10.5f}  {:>6}  {}", token.token_id(),
                       token.logprob(), token.rank(), Quoted(token.text()));
    for (const pb::TokenLogprob& top : token.top()) {
      out += fmt::format("  {}:{:.3f}", Quoted(top.text()), top.logprob());
    }
    out += "\n";
  }
  return out;
}

}  // namespace

std::string FinishReasonText(pb::FinishReason reason) {
  constexpr size_t kPrefix = sizeof("FINISH_REASON_") - 1;
  const std::string& name = pb::FinishReason_Name(reason);
  if (name.size() <= kPrefix) return fmt::format("{}", int{reason});
  return name.substr(kPrefix);
}

void StreamResult::Add(const pb::GenerateChunk& chunk, Clock::time_point now) {
  last_ = now;
  if (!started_ && chunk.token_ids_size() > 0) {
    started_ = true;
    first_ = now;
    first_tokens_ = static_cast<size_t>(chunk.token_ids_size());
  }
  if (!chunk.request_id().empty()) request_id_ = chunk.request_id();
  text_ += chunk.text();
  token_ids_.insert(token_ids_.end(), chunk.token_ids().begin(),
                    chunk.token_ids().end());
  logprobs_.insert(logprobs_.end(), chunk.logprobs().begin(),
                   chunk.logprobs().end());
  prompt_logprobs_.insert(prompt_logprobs_.end(),
                          chunk.prompt_logprobs().begin(),
                          chunk.prompt_logprobs().end());
  if (chunk.finish_reason() != pb::FINISH_REASON_NOT_FINISHED) {
    finish_reason_ = chunk.finish_reason();
    stop_string_ = chunk.stop_string();
  }
  if (chunk.has_usage()) usage_ = chunk.usage();
  if (chunk.seed() != 0) seed_ = chunk.seed();
  if (chunk.noise_seed() != 0) noise_seed_ = chunk.noise_seed();
}

double StreamResult::FirstTokenMs() const {
  return started_ ? Milliseconds(first_ - sent_) : 0.0;
}

double StreamResult::TokensPerSecond() const {
  const double ms = Milliseconds(last_ - first_);
  if (!started_ || ms <= 0.0) return 0.0;
  return static_cast<double>(token_ids_.size() - first_tokens_) / ms * 1e3;
}

std::string StreamResult::Summary(const absl::Status& status) const {
  const std::string budget =
      usage_.cache_budget_tokens() == 0
          ? "full"
          : fmt::format("{} tokens", usage_.cache_budget_tokens());
  std::string finish = FinishReasonText(finish_reason_);
  if (!stop_string_.empty()) finish += " at " + Quoted(stop_string_);
  if (absl::IsCancelled(status)) finish = "interrupted";
  return fmt::format(
      "tokens/s        {:.1f}   ({} tokens in {:.2f} s)\n"
      "first token     {:.0f} ms (queued {:.0f} ms, prefill {:.0f} ms)\n"
      "prompt          {} tokens\n"
      "cache budget    {}\n"
      "evicted tokens  {}\n"
      "finish          {}\n",
      TokensPerSecond(), token_ids_.size(), Milliseconds(last_ - sent_) / 1e3,
      FirstTokenMs(), usage_.queue_ms(), usage_.prefill_ms(),
      usage_.prompt_tokens(), budget, usage_.evicted_tokens(), finish);
}

std::string StreamResult::ShortSummary() const {
  return fmt::format(
      "[{} tokens, {:.1f} tokens/s, first token {:.0f} ms, {}]\n",
      token_ids_.size(), TokensPerSecond(), FirstTokenMs(),
      FinishReasonText(finish_reason_));
}

std::string StreamResult::LogprobTable() const {
  if (logprobs_.empty() && prompt_logprobs_.empty()) return "";
  std::string out = "      id     logprob    rank  token\n";
  if (!prompt_logprobs_.empty()) {
    out += LogprobLines(prompt_logprobs_) + "-- answer --\n";
  }
  return out + LogprobLines(logprobs_);
}

json StreamResult::ToJson() const {
  json out = {{"request_id", request_id_},
              {"text", text_},
              {"token_ids", token_ids_},
              {"finish_reason", FinishReasonText(finish_reason_)},
              {"stop_string", stop_string_},
              {"seed", seed_},
              {"noise_seed", noise_seed_},
              {"usage",
               {{"prompt_tokens", usage_.prompt_tokens()},
                {"generated_tokens", usage_.generated_tokens()},
                {"max_new_tokens", usage_.max_new_tokens()},
                {"cache_budget_tokens", usage_.cache_budget_tokens()},
                {"evicted_tokens", usage_.evicted_tokens()},
                {"queue_ms", usage_.queue_ms()},
                {"prefill_ms", usage_.prefill_ms()},
                {"decode_ms", usage_.decode_ms()}}},
              {"first_token_ms", FirstTokenMs()},
              {"tokens_per_second", TokensPerSecond()}};
  if (!logprobs_.empty()) out["logprobs"] = LogprobsJson(logprobs_);
  if (!prompt_logprobs_.empty()) {
    out["prompt_logprobs"] = LogprobsJson(prompt_logprobs_);
  }
  return out;
}

}  // namespace kf::tools
