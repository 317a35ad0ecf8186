#include "engine/sequence_group.h"

#include <algorithm>
#include <random>
#include <utility>

namespace kf::engine {
namespace {

// What the host does with a logit (its share of a logprob and of choosing a
// token) takes as long as about this many multiply-adds of a product.
constexpr int64_t kHostWorkPerLogit = 200;

// Logits of a row, in units of one row's products through one layer.
int32_t LogitRowCost(const ModelConfig& c) {
  const AttentionShape shape = c.attention_shape(DType::kF32);
  const int64_t layer = c.hidden * (shape.qkv_dim() + shape.out_dim()) +
                        int64_t{3} * c.hidden * c.ffn;
  const int64_t logits = c.vocabulary * (c.hidden + kHostWorkPerLogit);
  return static_cast<int32_t>((logits + layer - 1) / layer);
}

// Of the kernels. Below, the largest x + zeta takes all; above, all x are
// alike.
constexpr double kLeastTau = 1e-30;
constexpr double kLargestTau = 1e30;

uint64_t DrawSeed() {
  std::random_device device;
  return (uint64_t{device()} << 32) | device();
}

}  // namespace

SequenceGroup::SequenceGroup(RequestId request_id,
                             Request submitted,
                             const RequestSizes& request_sizes,
                             std::shared_ptr<TokenSink> results,
                             const Tokenizer& tokenizer,
                             TimePoint arrived)
    : id(request_id),
      request(std::move(submitted)),
      sizes(request_sizes),
      sink(std::move(results)),
      seed(request.sampling.seed ? *request.sampling.seed : DrawSeed()),
      noise_seed(
          request.cache.noise_seed.value_or(request.sampling.seed.value_or(0))),
      arrival(arrived) {
  const IncrementalDecoder text(tokenizer, request.output.keep_special_tokens,
                                /*at_text_start=*/false);
  const StopMatcher stops(request.stopping.stop, request.stopping.include_stop);
  std::optional<TokenHistory> prompt;
  if (HasPenalties(request.sampling)) {
    prompt.emplace().AddPrompt(request.prompt);
  }
  for (int32_t i = 0; i < sizes.sequences; ++i) {
    sequences.push_back(std::make_unique<Sequence>(
        *this, request, static_cast<uint32_t>(i), text, stops, prompt));
  }
}

size_t SequenceGroup::live() const {
  return static_cast<size_t>(
      std::count_if(sequences.begin(), sequences.end(),
                    [](const auto& s) { return !s->finished; }));
}

Sequence& SequenceGroup::first() const {
  for (const auto& s : sequences) {
    if (!s->finished) return *s;
  }
  return *sequences.front();
}

bool SequenceGroup::replayed() const {
  const Sequence& s = first();
  const bool in_prefill = !workspace.empty();
  return !preempted && !in_prefill && prompt_done &&
         static_cast<size_t>(s.cache.fed) >= s.fed_tokens.size();
}

SchedulerEntry SequenceGroup::scheduler_entry(const ModelConfig& config) const {
  SchedulerEntry entry{.id = id,
                       .priority = request.priority,
                       .prompt_tokens = sizes.prompt_tokens,
                       .rows = sizes.sequences,
                       .cache_pages = CountPages(sizes, config.layers).prompt,
                       .growth = GrowthOf(sizes, config.layers),
                       .logit_row_cost = request.output.prompt_logprobs
                                             ? LogitRowCost(config)
                                             : 0,
                       .deadline = request.deadline,
                       .time_limit = std::nullopt};
  const double limit_ms = request.stopping.time_limit_ms;
  if (limit_ms > 0.0) {
    entry.time_limit =
        arrival + std::chrono::duration_cast<Duration>(
                      std::chrono::duration<double, std::milli>(limit_ms));
  }
  return entry;
}

ScoreOptions SequenceGroup::score(uint32_t step, uint32_t stream) const {
  const CacheOptions& c = request.cache;
  ScoreOptions score;
  score.enabled = sizes.rules.scored;
  if (c.policy != CachePolicy::kKeyformer) {
    score.noise = NoiseKind::kNone;
    score.tau = 1.0F;
    return score;
  }
  score.noise = c.noise;
  score.resample_once = c.resample_once;
  score.seed = noise_seed;
  double tau = std::clamp(c.tau_init, kLeastTau, kLargestTau);
  if (step > 0) {
    score.stream = stream;
    const double end = std::clamp(c.tau_end, kLeastTau, kLargestTau);
    const double init = tau;
    tau += step * (end - init) / sizes.max_new_tokens;
    tau = end >= init ? std::min(tau, end) : std::max(tau, end);
  }
  score.tau = static_cast<float>(tau);
  return score;
}

int32_t SequenceGroup::score_first_row() const {
  const uint32_t rows = request.cache.score_queries;
  const auto n = static_cast<uint32_t>(sizes.prompt_tokens);
  return rows == 0 || rows >= n ? 0 : static_cast<int32_t>(n - rows);
}

uint32_t SequenceGroup::budget_tokens() const {
  const CachePolicy policy = request.cache.policy;
  const bool evicts =
      policy != CachePolicy::kFull && policy != CachePolicy::kQuest;
  return evicts ? static_cast<uint32_t>(sizes.budget) : 0;
}

Usage SequenceGroup::usage(TimePoint now) const {
  Usage usage;
  usage.prompt_tokens = static_cast<uint32_t>(sizes.prompt_tokens);
  usage.max_new_tokens = static_cast<uint32_t>(sizes.max_new_tokens);
  usage.cache_budget_tokens = budget_tokens();
  usage.queue_ms = ToMilliseconds(admitted.value_or(now) - arrival);
  if (admitted) {
    usage.prefill_ms = ToMilliseconds(prompt_done.value_or(now) - *admitted);
  }
  for (const auto& sequence : sequences) {
    usage.generated_tokens += sequence->generated;
    if (!prompt_done) continue;
    usage.evicted_tokens += static_cast<uint32_t>(sequence->cache.evicted());
  }
  if (prompt_done) {
    usage.decode_ms = ToMilliseconds(now - *prompt_done);
  }
  return usage;
}

}  // namespace kf::engine
