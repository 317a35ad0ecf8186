#include "server/metrics.h"

#include <regex>
#include <sstream>
#include <string>

#include "tests/testing/matchers.h"

namespace kf::server {
namespace {

using ::testing::HasSubstr;

TEST(Metrics, EverySeriesIsThereFromTheStart) {
  const std::string text = Metrics().Render(nullptr);
  for (const char* line : {
           "keyformer_num_requests_running 0\n",
           "keyformer_num_requests_waiting 0\n",
           "keyformer_kv_cache_usage_ratio 0\n",
           "keyformer_prompt_tokens_total 0\n",
           "keyformer_generation_tokens_total 0\n",
           "keyformer_generation_tokens_per_second 0\n",
           "keyformer_time_to_first_token_seconds_count 0\n",
           "keyformer_inter_token_latency_seconds_count 0\n",
           "keyformer_e2e_request_latency_seconds_count 0\n",
           "keyformer_request_queue_time_seconds_count 0\n",
           "keyformer_requests_received_total 0\n",
           "keyformer_request_success_total{finish_reason=\"eos\"} 0\n",
           "keyformer_request_success_total{finish_reason=\"length\"} 0\n",
           "keyformer_request_failed_total{code=\"DEADLINE_EXCEEDED\"} 0\n",
           "keyformer_request_cancelled_total 0\n",
           "keyformer_request_rejected_total{reason=\"invalid\"} 0\n",
           "keyformer_request_rejected_total{reason=\"queue_full\"} 0\n",
           "keyformer_num_preemptions_total 0\n",
           "keyformer_batch_size_count 0\n",
           "keyformer_cache_tokens{kind=\"physical\"} 0\n",
           "keyformer_cache_tokens{kind=\"logical\"} 0\n",
           "keyformer_evicted_tokens_total 0\n",
           "keyformer_cache_budget_tokens_count 0\n",
           "keyformer_iteration_tokens_total 0\n",
       }) {
    EXPECT_THAT(text, HasSubstr(line));
  }
}

TEST(Metrics, CountsWhatTheEngineReports) {
  Metrics metrics;
  metrics.OnReceived();
  metrics.OnAdmitted(0.25, 100, 50);
  metrics.OnStep({.decode_rows = 0, .prompt_tokens = 100, .seconds = 0.1});
  metrics.OnGenerated(2);
  metrics.OnFirstToken(0.5);
  metrics.OnStep({.decode_rows = 3, .prompt_tokens = 0, .seconds = 0.1});
  metrics.OnToken(0.1);
  metrics.OnEvicted(2);
  metrics.OnPreempted();
  metrics.OnSucceeded(engine::FinishReason::kLength, {}, 0.6);
  metrics.OnCancelled();
  metrics.OnFailed(absl::StatusCode::kInternal);
  metrics.OnRejected(engine::RejectReason::kQueueFull);
  metrics.OnRefused(absl::StatusCode::kUnauthenticated);
  engine::EngineStats stats;
  stats.running = 4;
  stats.waiting = 5;
  stats.pages_total = 8;
  stats.pages_free = 6;
  stats.physical_cache_tokens = 64;
  stats.logical_cache_tokens = 128;
  stats.generation_tokens_per_second = 12.5;
  const std::string text = metrics.Render(&stats);
  for (const char* line : {
           "keyformer_requests_received_total 2\n",
           "keyformer_prompt_tokens_total 100\n",
           "keyformer_generation_tokens_total 2\n",
           "keyformer_iteration_tokens_total 103\n",
           "keyformer_batch_size_sum 3\n",
           "keyformer_batch_size_count 1\n",
           "keyformer_evicted_tokens_total 2\n",
           "keyformer_num_preemptions_total 1\n",
           "keyformer_request_success_total{finish_reason=\"length\"} 1\n",
           "keyformer_request_failed_total{code=\"INTERNAL\"} 1\n",
           "keyformer_request_cancelled_total 1\n",
           "keyformer_request_rejected_total{reason=\"queue_full\"} 1\n",
           "keyformer_request_rejected_total{reason=\"unauthenticated\"} 1\n",
           "keyformer_num_requests_running 4\n",
           "keyformer_num_requests_waiting 5\n",
           "keyformer_kv_cache_usage_ratio 0.25\n",
           "keyformer_cache_tokens{kind=\"logical\"} 128\n",
           "keyformer_generation_tokens_per_second 12.5\n",
           "keyformer_time_to_first_token_seconds_bucket{le=\"0.5\"} 1\n",
           "keyformer_request_queue_time_seconds_sum 0.25\n",
       }) {
    EXPECT_THAT(text, HasSubstr(line));
  }
}

TEST(Metrics, EveryFinishRefusalAndFailureHasASeries) {
  Metrics metrics;
  for (int reason = 0; reason <= static_cast<int>(engine::FinishReason::kError);
       ++reason) {
    metrics.OnSucceeded(static_cast<engine::FinishReason>(reason), {}, 1.0);
  }
  for (int code = 1; code <= 16; ++code) {
    metrics.OnRefused(static_cast<absl::StatusCode>(code));
    metrics.OnFailed(static_cast<absl::StatusCode>(code));
  }
  EXPECT_THAT(metrics.Render(nullptr),
              HasSubstr("keyformer_requests_received_total 16\n"));
}

TEST(Metrics, EveryLineIsAComentOrASample) {
  const std::regex sample(
      R"(keyformer_[a-z0-9_]+(\{[a-z_]+="[^"]*"\})? [-+.0-9eInfNa]+)");
  std::istringstream lines(Metrics().Render(nullptr));
  std::string line;
  int samples = 0;
  while (std::getline(lines, line)) {
    if (line.rfind("# HELP ", 0) == 0 || line.rfind("# TYPE ", 0) == 0) {
      continue;
    }
    EXPECT_TRUE(std::regex_match(line, sample)) << line;
    ++samples;
  }
  EXPECT_GT(samples, 100);
}

}  // namespace
}  // namespace kf::server
