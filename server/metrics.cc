#include "server/metrics.h"

#include <prometheus/counter.h>
#include <prometheus/gauge.h>
#include <prometheus/histogram.h>
#include <prometheus/registry.h>
#include <prometheus/text_serializer.h>

#include <map>
#include <string_view>

#include "kernels/core/status.h"

namespace kf::server {
namespace {

using prometheus::BuildCounter;
using prometheus::BuildGauge;
using prometheus::BuildHistogram;
using prometheus::Counter;
using prometheus::Gauge;
using prometheus::Histogram;
using prometheus::Registry;
using Buckets = Histogram::BucketBoundaries;

// Seconds. A token takes 1 ms to 1 s, a prompt up to minutes.
const Buckets kTokenSeconds = {0.001, 0.0025, 0.005, 0.01,  0.015, 0.02, 0.025,
                               0.03,  0.04,   0.05,  0.075, 0.1,   0.15, 0.2,
                               0.3,   0.5,    0.75,  1.0,   2.5};
const Buckets kPromptSeconds = {0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08,
                                0.1,   0.25,  0.5,  0.75, 1.0,  2.5,  5.0,
                                7.5,   10.0,  20.0, 40.0, 80.0};
const Buckets kRequestSeconds = {0.05, 0.1,  0.3,   0.5,   0.8,  1.0,  1.5,
                                 2.0,  2.5,  5.0,   10.0,  15.0, 20.0, 30.0,
                                 40.0, 60.0, 120.0, 300.0, 600.0};
const Buckets kRows = {1, 2, 4, 8, 12, 16, 24, 32, 48, 64, 96, 128, 256, 512};
const Buckets kTokens = {16,   32,   64,   128,   256,   512,   1024,
                         2048, 4096, 8192, 16384, 32768, 65536, 131072};

Counter& OneCounter(Registry& registry, const char* name, const char* help) {
  return BuildCounter().Name(name).Help(help).Register(registry).Add({});
}
Gauge& OneGauge(Registry& registry, const char* name, const char* help) {
  return BuildGauge().Name(name).Help(help).Register(registry).Add({});
}
Histogram& OneHistogram(Registry& registry,
                        const char* name,
                        const char* help,
                        const Buckets& buckets) {
  return BuildHistogram().Name(name).Help(help).Register(registry).Add({},
                                                                       buckets);
}

// A counter per value of one label, all of them there from the start.
class LabelledCounter {
 public:
  LabelledCounter(Registry& registry,
                  const char* name,
                  const char* help,
                  const char* label,
                  const std::vector<std::string>& values) {
    auto& family = BuildCounter().Name(name).Help(help).Register(registry);
    for (const std::string& value : values) {
      counters_[value] = &family.Add({{label, value}});
    }
  }
  void Increment(const std::string& value) {
    const auto it = counters_.find(value);
    KF_CHECK(it != counters_.end());
    it->second->Increment();
  }

 private:
  std::map<std::string, Counter*> counters_;  // owned by the registry
};

const char* NameOf(engine::FinishReason reason) {
  switch (reason) {
    case engine::FinishReason::kEos:
      return "eos";
    case engine::FinishReason::kStop:
      return "stop";
    case engine::FinishReason::kLength:
      return "length";
    case engine::FinishReason::kContext:
      return "context";
    case engine::FinishReason::kTimeLimit:
      return "time_limit";
    case engine::FinishReason::kCancelled:
    case engine::FinishReason::kError:
    case engine::FinishReason::kNotFinished:
      break;
  }
  return "other";
}

const char* NameOf(engine::RejectReason reason) {
  switch (reason) {
    case engine::RejectReason::kInvalid:
      return "invalid";
    case engine::RejectReason::kQueueFull:
      return "queue_full";
    case engine::RejectReason::kNeverFits:
      return "never_fits";
    case engine::RejectReason::kDraining:
      break;
  }
  return "draining";
}

const char* RefusalOf(absl::StatusCode code) {
  switch (code) {
    case absl::StatusCode::kInvalidArgument:
      return "invalid";
    case absl::StatusCode::kUnimplemented:
      return "unimplemented";
    case absl::StatusCode::kNotFound:
      return "unknown_model";
    case absl::StatusCode::kUnauthenticated:
      return "unauthenticated";
    case absl::StatusCode::kUnavailable:
      return "loading";
    case absl::StatusCode::kResourceExhausted:
      return "queue_full";
    default:
      return "other";
  }
}

const char* NameOf(absl::StatusCode code) {
  switch (code) {
    case absl::StatusCode::kDeadlineExceeded:
      return "DEADLINE_EXCEEDED";
    case absl::StatusCode::kUnavailable:
      return "UNAVAILABLE";
    case absl::StatusCode::kInternal:
      return "INTERNAL";
    default:
      return "OTHER";
  }
}

}  // namespace

struct Metrics::Impl {
  Registry registry;

  Gauge& running = OneGauge(registry,
                            "keyformer_num_requests_running",
                            "Requests in prefill or decode.");
  Gauge& waiting = OneGauge(
      registry, "keyformer_num_requests_waiting", "Requests in the queue.");
  Gauge& kv_usage = OneGauge(registry,
                             "keyformer_kv_cache_usage_ratio",
                             "Physical cache pages in use, 0 to 1.");
  Gauge& tokens_per_second =
      OneGauge(registry,
               "keyformer_generation_tokens_per_second",
               "Tokens generated per second over the last few seconds.");
  prometheus::Family<Gauge>& cache_tokens =
      BuildGauge()
          .Name("keyformer_cache_tokens")
          .Help(
              "Token slots owned (physical) and tokens seen (logical) by "
              "running requests.")
          .Register(registry);
  Gauge& physical = cache_tokens.Add({{"kind", "physical"}});
  Gauge& logical = cache_tokens.Add({{"kind", "logical"}});

  Counter& prompt_tokens = OneCounter(registry,
                                      "keyformer_prompt_tokens_total",
                                      "Prompt tokens of admitted requests.");
  Counter& generation_tokens = OneCounter(
      registry, "keyformer_generation_tokens_total", "Tokens generated.");
  Counter& evicted = OneCounter(registry,
                                "keyformer_evicted_tokens_total",
                                "Tokens evicted from caches, per kv head.");
  Counter& iteration_tokens =
      OneCounter(registry,
                 "keyformer_iteration_tokens_total",
                 "Tokens that the engine's steps worked on: rows decoded and "
                 "prompt tokens.");
  Counter& preemptions =
      OneCounter(registry,
                 "keyformer_num_preemptions_total",
                 "Requests whose cache was taken back to be recomputed.");
  Counter& received = OneCounter(registry,
                                 "keyformer_requests_received_total",
                                 "Generation requests that arrived.");
  Counter& cancelled =
      OneCounter(registry,
                 "keyformer_request_cancelled_total",
                 "Requests whose client cancelled or went away.");
  LabelledCounter success{
      registry,
      "keyformer_request_success_total",
      "Requests that finished, by reason.",
      "finish_reason",
      {"eos", "stop", "length", "context", "time_limit", "other"}};
  LabelledCounter failed{
      registry,
      "keyformer_request_failed_total",
      "Accepted requests that ended with an error, by status code.",
      "code",
      {"DEADLINE_EXCEEDED", "UNAVAILABLE", "INTERNAL", "OTHER"}};
  LabelledCounter rejected{
      registry,
      "keyformer_request_rejected_total",
      "Requests refused on arrival, by reason.",
      "reason",
      {"invalid", "unimplemented", "unknown_model", "unauthenticated",
       "queue_full", "never_fits", "draining", "loading", "other"}};

  Histogram& first_token = OneHistogram(registry,
                                        "keyformer_time_to_first_token_seconds",
                                        "From arrival to the first token.",
                                        kPromptSeconds);
  Histogram& inter_token = OneHistogram(registry,
                                        "keyformer_inter_token_latency_seconds",
                                        "Between two tokens of a request.",
                                        kTokenSeconds);
  Histogram& e2e = OneHistogram(registry,
                                "keyformer_e2e_request_latency_seconds",
                                "From arrival to the last token.",
                                kRequestSeconds);
  Histogram& queue_time = OneHistogram(registry,
                                       "keyformer_request_queue_time_seconds",
                                       "From arrival to admission.",
                                       kRequestSeconds);
  Histogram& batch_size = OneHistogram(registry,
                                       "keyformer_batch_size",
                                       "Sequences decoded in one step.",
                                       kRows);
  Histogram& budget =
      OneHistogram(registry,
                   "keyformer_cache_budget_tokens",
                   "Cache budget k of admitted requests; 0 for FULL and QUEST.",
                   kTokens);
};

Metrics::Metrics() : impl_(std::make_unique<Impl>()) {}
Metrics::~Metrics() = default;

std::string Metrics::Render(const engine::EngineStats* stats) {
  if (stats != nullptr) {
    impl_->running.Set(stats->running);
    impl_->waiting.Set(stats->waiting);
    const auto used =
        static_cast<double>(stats->pages_total - stats->pages_free);
    impl_->kv_usage.Set(stats->pages_total > 0
                            ? used / static_cast<double>(stats->pages_total)
                            : 0.0);
    impl_->tokens_per_second.Set(stats->generation_tokens_per_second);
    impl_->physical.Set(static_cast<double>(stats->physical_cache_tokens));
    impl_->logical.Set(static_cast<double>(stats->logical_cache_tokens));
  }
  return prometheus::TextSerializer().Serialize(impl_->registry.Collect());
}

void Metrics::OnRefused(absl::StatusCode code) {
  impl_->received.Increment();
  impl_->rejected.Increment(RefusalOf(code));
}

void Metrics::OnReceived() { impl_->received.Increment(); }

void Metrics::OnRejected(engine::RejectReason reason) {
  impl_->rejected.Increment(NameOf(reason));
}

void Metrics::OnAdmitted(double queue_seconds,
                         uint32_t prompt_tokens,
                         uint32_t cache_budget_tokens) {
  impl_->queue_time.Observe(queue_seconds);
  impl_->prompt_tokens.Increment(prompt_tokens);
  impl_->budget.Observe(cache_budget_tokens);
}

void Metrics::OnGenerated(uint32_t tokens) {
  impl_->generation_tokens.Increment(tokens);
}

void Metrics::OnFirstToken(double seconds_since_arrival) {
  impl_->first_token.Observe(seconds_since_arrival);
}

void Metrics::OnToken(double seconds_since_last_token) {
  impl_->inter_token.Observe(seconds_since_last_token);
}

void Metrics::OnEvicted(uint32_t tokens) { impl_->evicted.Increment(tokens); }
void Metrics::OnPreempted() { impl_->preemptions.Increment(); }

void Metrics::OnStep(const engine::StepReport& report) {
  impl_->iteration_tokens.Increment(report.decode_rows + report.prompt_tokens);
  if (report.decode_rows > 0) impl_->batch_size.Observe(report.decode_rows);
}

void Metrics::OnSucceeded(engine::FinishReason reason,
                          const engine::Usage& /*usage*/,
                          double e2e_seconds) {
  impl_->success.Increment(NameOf(reason));
  impl_->e2e.Observe(e2e_seconds);
}

void Metrics::OnCancelled() { impl_->cancelled.Increment(); }

void Metrics::OnFailed(absl::StatusCode code) {
  impl_->failed.Increment(NameOf(code));
}

}  // namespace kf::server
