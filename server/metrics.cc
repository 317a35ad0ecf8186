#include "server/metrics.h"

#include <prometheus/counter.h>
#include <prometheus/gauge.h>
#include <prometheus/histogram.h>
#include <prometheus/registry.h>
#include <prometheus/text_serializer.h>

#include <algorithm>
#include <map>
#include <string_view>

#include "kernels/core/mutex.h"
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

// Counts what happens to requests, and shows it when it is told to: so that a
// scrape sees all such counters as they were at one moment.
class Tally {
 public:
  explicit Tally(Counter& counter) : counter_(counter) {}
  void Increment() { ++count_; }
  void Publish() {
    counter_.Increment(static_cast<double>(count_ - published_));
    published_ = count_;
  }
  int64_t count() const { return count_; }

 private:
  Counter& counter_;  // owned by the registry
  int64_t count_ = 0;
  int64_t published_ = 0;
};

// A tally per value of one label, all of them there from the start.
class LabelledTally {
 public:
  LabelledTally(Registry& registry,
                const char* name,
                const char* help,
                const char* label,
                const std::vector<std::string>& values) {
    auto& family = BuildCounter().Name(name).Help(help).Register(registry);
    for (const std::string& value : values) {
      tallies_.emplace(value, family.Add({{label, value}}));
    }
  }
  void Increment(const std::string& value) {
    const auto it = tallies_.find(value);
    KF_CHECK(it != tallies_.end());
    it->second.Increment();
  }
  void Publish() {
    for (auto& [value, tally] : tallies_) tally.Publish();
  }
  int64_t count() const {
    int64_t sum = 0;
    for (const auto& [value, tally] : tallies_) sum += tally.count();
    return sum;
  }

 private:
  std::map<std::string, Tally> tallies_;
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
  Mutex render_mu;  // one scrape at a time publishes, and collects

  // Received = rejected + success + failed + cancelled + in flight, in every
  // scrape: all of them change, and are published, under this lock.
  Mutex mu;
  Tally received KF_GUARDED_BY(mu){
      OneCounter(registry,
                 "keyformer_requests_received_total",
                 "Generation requests that arrived.")};
  Tally cancelled KF_GUARDED_BY(mu){
      OneCounter(registry,
                 "keyformer_request_cancelled_total",
                 "Requests whose client cancelled or went away.")};
  LabelledTally success KF_GUARDED_BY(mu){
      registry,
      "keyformer_request_success_total",
      "Requests that finished, by reason.",
      "finish_reason",
      {"eos", "stop", "length", "context", "time_limit", "other"}};
  LabelledTally failed KF_GUARDED_BY(mu){
      registry,
      "keyformer_request_failed_total",
      "Accepted requests that ended with an error, by status code.",
      "code",
      {"DEADLINE_EXCEEDED", "UNAVAILABLE", "INTERNAL", "OTHER"}};
  LabelledTally rejected KF_GUARDED_BY(mu){
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
  Histogram& prefill_time =
      OneHistogram(registry,
                   "keyformer_request_prefill_time_seconds",
                   "From admission to the end of the prompt, of requests that "
                   "finished.",
                   kRequestSeconds);
  Histogram& decode_time =
      OneHistogram(registry,
                   "keyformer_request_decode_time_seconds",
                   "From the end of the prompt to the last token, of requests "
                   "that finished.",
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

  Histogram& decode_step =
      OneHistogram(registry,
                   "keyformer_decode_step_seconds",
                   "A step's decoding: one token of every running sequence.",
                   kTokenSeconds);
  Histogram& prefill_slice =
      OneHistogram(registry,
                   "keyformer_prefill_slice_seconds",
                   "A step's prompt work, replays included: what the next "
                   "decoding waits for.",
                   kTokenSeconds);
  prometheus::Family<Counter>& step_seconds =
      BuildCounter()
          .Name("keyformer_step_seconds_total")
          .Help(
              "The engine thread's time in steps, by part: of decoding its "
              "attention, choosing the tokens, and the rest (products); "
              "prompts; replays of the preempted; all else.")
          .Register(registry);
  Counter& decode_attention = step_seconds.Add({{"part", "decode_attention"}});
  Counter& decode_sampling = step_seconds.Add({{"part", "decode_sampling"}});
  Counter& decode_products = step_seconds.Add({{"part", "decode_products"}});
  Counter& prefill = step_seconds.Add({{"part", "prefill"}});
  Counter& replay = step_seconds.Add({{"part", "replay"}});
  Counter& other = step_seconds.Add({{"part", "other"}});

  // Requests that are neither refused nor over.
  int64_t PublishRequests() KF_EXCLUDES(mu);
};

int64_t Metrics::Impl::PublishRequests() {
  const MutexLock lock(mu);
  received.Publish();
  cancelled.Publish();
  success.Publish();
  failed.Publish();
  rejected.Publish();
  return received.count() - cancelled.count() - success.count() -
         failed.count() - rejected.count();
}

Metrics::Metrics() : impl_(std::make_unique<Impl>()) {}
Metrics::~Metrics() = default;

std::string Metrics::Render(const engine::EngineStats* stats) {
  const MutexLock rendering(impl_->render_mu);
  const int64_t in_flight = impl_->PublishRequests();
  // `stats` is a moment older: who has ended since runs no more, and who has
  // come since waits.
  const int64_t running =
      stats == nullptr ? 0 : std::min<int64_t>(stats->running, in_flight);
  impl_->running.Set(static_cast<double>(running));
  impl_->waiting.Set(static_cast<double>(in_flight - running));
  if (stats != nullptr) {
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
  const MutexLock lock(impl_->mu);
  impl_->received.Increment();
  impl_->rejected.Increment(RefusalOf(code));
}

void Metrics::OnReceived() {
  const MutexLock lock(impl_->mu);
  impl_->received.Increment();
}

void Metrics::OnRejected(engine::RejectReason reason) {
  const MutexLock lock(impl_->mu);
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
  if (report.decode_rows > 0) {
    impl_->batch_size.Observe(report.decode_rows);
    impl_->decode_step.Observe(report.decode_seconds);
  }
  const double prompts = report.prefill_seconds + report.replay_seconds;
  if (report.prefilled) impl_->prefill_slice.Observe(prompts);
  const double products = report.decode_seconds - report.attention_seconds -
                          report.sampling_seconds;
  impl_->decode_attention.Increment(report.attention_seconds);
  impl_->decode_sampling.Increment(report.sampling_seconds);
  impl_->decode_products.Increment(std::max(products, 0.0));
  impl_->prefill.Increment(report.prefill_seconds);
  impl_->replay.Increment(report.replay_seconds);
  const double other = report.seconds - report.decode_seconds - prompts;
  impl_->other.Increment(std::max(other, 0.0));
}

void Metrics::OnSucceeded(engine::FinishReason reason,
                          const engine::Usage& usage,
                          double e2e_seconds) {
  impl_->prefill_time.Observe(usage.prefill_ms / 1e3);
  impl_->decode_time.Observe(usage.decode_ms / 1e3);
  impl_->e2e.Observe(e2e_seconds);
  const MutexLock lock(impl_->mu);
  impl_->success.Increment(NameOf(reason));
}

void Metrics::OnCancelled() {
  const MutexLock lock(impl_->mu);
  impl_->cancelled.Increment();
}

void Metrics::OnFailed(absl::StatusCode code) {
  const MutexLock lock(impl_->mu);
  impl_->failed.Increment(NameOf(code));
}

}  // namespace kf::server
