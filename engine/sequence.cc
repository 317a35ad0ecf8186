#include "engine/sequence.h"

#include <algorithm>
#include <random>
#include <utility>

namespace kf::engine {
namespace {

uint64_t DrawSeed() {
  std::random_device device;
  return (uint64_t{device()} << 32) | device();
}

}  // namespace

Sequence::Sequence(RequestId request_id,
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
      arrival(arrived),
      decoder(tokenizer,
              request.output.keep_special_tokens,
              /*at_text_start=*/false),
      matcher(request.stopping.stop, request.stopping.include_stop) {
  history.AddPrompt(request.prompt);
}

SchedulerEntry Sequence::scheduler_entry(int32_t layers) const {
  SchedulerEntry entry{.id = id,
                       .priority = request.priority,
                       .prompt_tokens = sizes.prompt_tokens,
                       .cache_pages = int64_t{PagesPerLayer(sizes)} * layers,
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

ScoreOptions Sequence::score(uint32_t step) const {
  const CacheOptions& c = request.cache;
  // n + T - 1 tokens are fed in all: with room for them nothing is evicted and
  // no score is read, unless a report shows it.
  const bool evicts =
      sizes.budget < sizes.prompt_tokens + sizes.max_new_tokens - 1;
  ScoreOptions score;
  score.enabled =
      c.policy != CachePolicy::kFull && (evicts || request.keep_cache_report);
  if (c.policy != CachePolicy::kKeyformer) {
    score.noise = NoiseKind::kNone;
    score.tau = 1.0F;
    return score;
  }
  score.noise = c.noise;
  score.resample_once = c.resample_once;
  score.seed = noise_seed;
  double tau = c.tau_init;
  if (step > 0) {
    tau += step * (c.tau_end - c.tau_init) / sizes.max_new_tokens;
    tau = c.tau_end >= c.tau_init ? std::min(tau, c.tau_end)
                                  : std::max(tau, c.tau_end);
  }
  score.tau = static_cast<float>(tau);
  return score;
}

int32_t Sequence::score_first_row() const {
  const uint32_t rows = request.cache.score_queries;
  const auto n = static_cast<uint32_t>(sizes.prompt_tokens);
  return rows == 0 || rows >= n ? 0 : static_cast<int32_t>(n - rows);
}

Usage Sequence::usage(TimePoint now) const {
  Usage usage;
  usage.prompt_tokens = static_cast<uint32_t>(sizes.prompt_tokens);
  usage.generated_tokens = generated;
  usage.max_new_tokens = static_cast<uint32_t>(sizes.max_new_tokens);
  if (request.cache.policy != CachePolicy::kFull) {
    usage.cache_budget_tokens = static_cast<uint32_t>(sizes.budget);
  }
  usage.queue_ms = ToMilliseconds(admitted.value_or(now) - arrival);
  if (admitted) {
    usage.prefill_ms = ToMilliseconds(prompt_done.value_or(now) - *admitted);
  }
  if (prompt_done) {
    usage.evicted_tokens = static_cast<uint32_t>(cache.evicted());
    usage.decode_ms = ToMilliseconds(now - *prompt_done);
  }
  return usage;
}

}  // namespace kf::engine
