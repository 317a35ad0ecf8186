#include "tools/keyformer/stream_result.h"

#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <utility>

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

json StateJson(const pb::CacheState& state) {
  json out = {{"retention", state.retention()}};
  for (const pb::LayerState& layer : state.layers()) {
    json heads = json::array();
    for (const pb::HeadState& head : layer.heads()) {
      heads.push_back(
          {{"positions", head.positions()}, {"scores", head.scores()}});
    }
    out["layers"].push_back({{"heads", std::move(heads)}});
  }
  return out;
}

json SequenceJson(const SequenceResult& s) {
  json out = {{"index", s.index},
              {"text", s.text},
              {"token_ids", s.token_ids},
              {"finish_reason", FinishReasonText(s.finish_reason)},
              {"stop_string", s.stop_string}};
  if (s.score != 0.0) out["score"] = s.score;
  if (!s.logprobs.empty()) out["logprobs"] = LogprobsJson(s.logprobs);
  if (s.report.has_value()) {
    out["cache_report"] = {
        {"budget_tokens", s.report->budget_tokens()},
        {"recent_tokens", s.report->recent_tokens()},
        {"after_prompt", StateJson(s.report->after_prompt())},
        {"at_end", StateJson(s.report->at_end())}};
  }
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

const SequenceResult& StreamResult::Add(const pb::GenerateChunk& chunk,
                                        Clock::time_point now) {
  last_ = now;
  SequenceResult& s = sequences_[chunk.index()];
  s.index = chunk.index();
  if (s.token_ids.empty() && chunk.token_ids_size() > 0) {
    s.first_tokens = static_cast<size_t>(chunk.token_ids_size());
    if (!started_) first_ = now;
    started_ = true;
  }
  if (!chunk.request_id().empty()) request_id_ = chunk.request_id();
  s.text += chunk.text();
  s.token_ids.insert(s.token_ids.end(), chunk.token_ids().begin(),
                     chunk.token_ids().end());
  s.logprobs.insert(s.logprobs.end(), chunk.logprobs().begin(),
                    chunk.logprobs().end());
  prompt_logprobs_.insert(prompt_logprobs_.end(),
                          chunk.prompt_logprobs().begin(),
                          chunk.prompt_logprobs().end());
  if (chunk.finish_reason() != pb::FINISH_REASON_NOT_FINISHED) {
    s.finish_reason = chunk.finish_reason();
    s.stop_string = chunk.stop_string();
    s.score = chunk.score();
  }
  if (chunk.has_cache_report()) s.report = chunk.cache_report();
  if (chunk.has_usage()) usage_ = chunk.usage();
  if (chunk.seed() != 0) seed_ = chunk.seed();
  if (chunk.noise_seed() != 0) noise_seed_ = chunk.noise_seed();
  return s;
}

bool StreamResult::failed() const {
  return std::any_of(sequences_.begin(), sequences_.end(), [](const auto& s) {
    return s.second.finish_reason == pb::FINISH_REASON_ERROR;
  });
}

size_t StreamResult::TokenCount() const {
  size_t count = 0;
  for (const auto& [index, s] : sequences_) count += s.token_ids.size();
  return count;
}

double StreamResult::FirstTokenMs() const {
  return started_ ? Milliseconds(first_ - sent_) : 0.0;
}

double StreamResult::TokensPerSecond() const {
  size_t timed = 0;
  size_t after_first = 0;  // of the server's own first step
  for (const auto& [index, s] : sequences_) {
    timed += s.token_ids.size() - s.first_tokens;
    if (!s.token_ids.empty()) after_first += s.token_ids.size() - 1;
  }
  const double ms = Milliseconds(last_ - first_);
  if (started_ && timed > 0 && ms > 0.0) {
    return static_cast<double>(timed) / ms * 1e3;
  }
  if (sequences_.size() == 1 || usage_.decode_ms() <= 0.0) return 0.0;
  return static_cast<double>(after_first) / usage_.decode_ms() * 1e3;
}

std::string StreamResult::Summary(const absl::Status& status) const {
  const std::string budget =
      usage_.cache_budget_tokens() == 0
          ? "full"
          : fmt::format("{} tokens", usage_.cache_budget_tokens());
  std::string finish;
  for (const auto& [index, s] : sequences_) {
    if (!finish.empty()) finish += ", ";
    finish += FinishReasonText(s.finish_reason);
    if (!s.stop_string.empty()) finish += " at " + Quoted(s.stop_string);
  }
  if (absl::IsCancelled(status)) finish = "interrupted";
  const std::string several = sequences_.size() == 1
                                  ? ""
                                  : fmt::format(
                                        "sequences       {} (counts and "
                                        "tokens/s are their sums)\n",
                                        sequences_.size());
  return fmt::format(
      "tokens/s        {:.1f}   ({} tokens in {:.2f} s)\n"
      "first token     {:.0f} ms (queued {:.0f} ms, prefill {:.0f} ms)\n"
      "prompt          {} tokens\n"
      "{}"
      "cache budget    {}\n"
      "evicted tokens  {}\n"
      "finish          {}\n",
      TokensPerSecond(), TokenCount(), Milliseconds(last_ - sent_) / 1e3,
      FirstTokenMs(), usage_.queue_ms(), usage_.prefill_ms(),
      usage_.prompt_tokens(), several, budget, usage_.evicted_tokens(), finish);
}

std::string StreamResult::ShortSummary() const {
  return fmt::format(
      "[{} tokens, {:.1f} tokens/s, first token {:.0f} ms, {}]\n", TokenCount(),
      TokensPerSecond(), FirstTokenMs(),
      FinishReasonText(front().finish_reason));
}

std::string StreamResult::LogprobTable() const {
  std::string out;
  if (!prompt_logprobs_.empty()) {
    out += LogprobLines(prompt_logprobs_) + "-- answer --\n";
  }
  for (const auto& [index, s] : sequences_) {
    if (index > 0 && !s.logprobs.empty()) {
      out += fmt::format("-- sequence {} --\n", index);
    }
    out += LogprobLines(s.logprobs);
  }
  if (out.empty()) return "";
  return "      id     logprob    rank  token\n" + out;
}

json StreamResult::ToJson() const {
  json out = SequenceJson(front());
  out.update({{"request_id", request_id_},
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
              {"tokens_per_second", TokensPerSecond()}});
  if (!prompt_logprobs_.empty()) {
    out["prompt_logprobs"] = LogprobsJson(prompt_logprobs_);
  }
  if (sequences_.size() > 1) {
    for (const auto& [index, s] : sequences_) {
      out["sequences"].push_back(SequenceJson(s));
    }
  }
  return out;
}

}  // namespace kf::tools
