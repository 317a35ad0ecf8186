#include "tests/golden/golden_support.h"

#include <chrono>
#include <stdexcept>
#include <utility>

#include "kernels/core/status.h"

namespace kf::testing {
namespace {

constexpr std::chrono::minutes kPatience{4};

}  // namespace

void CollectingSink::OnUpdate(engine::Update update) {
  MutexLock lock(mu_);
  Outcome& o = outcome_;
  if (o.answers.size() <= update.index) o.answers.resize(update.index + 1);
  Answer& answer = o.answers[update.index];
  answer.tokens.insert(answer.tokens.end(), update.token_ids.begin(),
                       update.token_ids.end());
  for (const engine::TokenLogprob& p : update.logprobs) {
    answer.logprobs.push_back(p.logprob);
  }
  if (update.finish_reason != engine::FinishReason::kNotFinished) {
    answer.finish_reason = update.finish_reason;
    answer.score = update.score;
    o.usage = update.usage;  // the last one's is the whole
  }
  if (update.cache_report.has_value()) {
    answer.report = *std::move(update.cache_report);
  }
  if (update.index == 0) o.text += update.text;
  changed_.NotifyAll();
}

void CollectingSink::OnEnd(const absl::Status& status) {
  MutexLock lock(mu_);
  outcome_.status = status;
  if (!outcome_.answers.empty()) {
    const Answer& first = outcome_.answers.front();
    outcome_.tokens = first.tokens;
    outcome_.logprobs = first.logprobs;
    outcome_.finish_reason = first.finish_reason;
    outcome_.report = first.report;
  }
  ended_ = true;
  changed_.NotifyAll();
}

Outcome CollectingSink::Wait() {
  MutexLock lock(mu_);
  while (!ended_) {
    if (changed_.WaitFor(mu_, kPatience)) continue;
    Outcome late = outcome_;
    late.status = absl::DeadlineExceededError("the request does not end");
    return late;
  }
  return outcome_;
}

void CollectingSink::WaitForTokens(size_t count) {
  MutexLock lock(mu_);
  while (!ended_ && (outcome_.answers.empty() ||
                     outcome_.answers.front().tokens.size() < count)) {
    if (!changed_.WaitFor(mu_, kPatience)) return;
  }
}

std::unique_ptr<engine::Engine> MakeEngine(EngineSetup setup) {
  static const engine::SteadyClock clock;
  engine::EngineOptions options;
  options.model_path = setup.model_path;
  options.weight_format = setup.f32 ? WeightFormat::kF32 : WeightFormat::kBF16;
  options.cache_dtype =
      setup.cache_dtype.value_or(setup.f32 ? DType::kF32 : DType::kBF16);
  options.backend.simd = setup.simd;
  options.backend.threads = setup.threads;
  options.kv_pool_bytes = setup.kv_pool_bytes;
  options.prefill_slice_tokens = setup.prefill_slice_tokens;
  auto made = engine::Engine::Create(options, clock, setup.observer,
                                     std::move(setup.backend));
  if (!made.ok()) throw std::runtime_error(made.status().ToString());
  return *std::move(made);
}

std::vector<Outcome> RunTogether(engine::Engine& engine,
                                 const std::vector<engine::Request>& requests) {
  std::vector<std::shared_ptr<CollectingSink>> sinks;
  std::vector<absl::Status> refused(requests.size());
  for (size_t i = 0; i < requests.size(); ++i) {
    sinks.push_back(std::make_shared<CollectingSink>());
    refused[i] = engine.Submit(requests[i], sinks.back()).status();
  }
  std::vector<Outcome> outcomes(requests.size());
  for (size_t i = 0; i < requests.size(); ++i) {
    if (refused[i].ok()) {
      outcomes[i] = sinks[i]->Wait();
    } else {
      outcomes[i].status = refused[i];
    }
  }
  return outcomes;
}

}  // namespace kf::testing
