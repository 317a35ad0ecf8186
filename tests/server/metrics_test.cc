#include "server/metrics.h"

#include <atomic>
#include <regex>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "tests/testing/matchers.h"
#include "tools/client_lib/metrics_page.h"

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
           "keyformer_request_prefill_time_seconds_count 0\n",
           "keyformer_request_decode_time_seconds_count 0\n",
           "keyformer_decode_step_seconds_count 0\n",
           "keyformer_prefill_slice_seconds_count 0\n",
           "keyformer_step_seconds_total{part=\"decode_attention\"} 0\n",
           "keyformer_step_seconds_total{part=\"replay\"} 0\n",
       }) {
    EXPECT_THAT(text, HasSubstr(line));
  }
}

TEST(Metrics, CountsWhatTheEngineReports) {
  Metrics metrics;
  for (int i = 0; i < 8; ++i) metrics.OnReceived();
  metrics.OnAdmitted(0.25, 100, 50);
  metrics.OnGenerated(2);
  metrics.OnFirstToken(0.5);
  metrics.OnToken(0.1);
  metrics.OnEvicted(2);
  metrics.OnPreempted();
  metrics.OnSucceeded(engine::FinishReason::kLength,
                      {.prefill_ms = 125.0, .decode_ms = 500.0}, 0.6);
  metrics.OnCancelled();
  metrics.OnFailed(absl::StatusCode::kInternal);
  metrics.OnRejected(engine::RejectReason::kQueueFull);
  metrics.OnRefused(absl::StatusCode::kUnauthenticated);
  engine::EngineStats stats;
  stats.running = 1;
  stats.pages_total = 8;
  stats.pages_free = 6;
  stats.physical_cache_tokens = 64;
  stats.logical_cache_tokens = 128;
  stats.generation_tokens_per_second = 12.5;
  const std::string text = metrics.Render(&stats);
  for (const char* line : {
           "keyformer_requests_received_total 9\n",
           "keyformer_prompt_tokens_total 100\n",
           "keyformer_generation_tokens_total 2\n",
           "keyformer_evicted_tokens_total 2\n",
           "keyformer_num_preemptions_total 1\n",
           "keyformer_request_success_total{finish_reason=\"length\"} 1\n",
           "keyformer_request_failed_total{code=\"INTERNAL\"} 1\n",
           "keyformer_request_cancelled_total 1\n",
           "keyformer_request_rejected_total{reason=\"queue_full\"} 1\n",
           "keyformer_request_rejected_total{reason=\"unauthenticated\"} 1\n",
           "keyformer_num_requests_running 1\n",
           "keyformer_num_requests_waiting 3\n",
           "keyformer_kv_cache_usage_ratio 0.25\n",
           "keyformer_cache_tokens{kind=\"logical\"} 128\n",
           "keyformer_generation_tokens_per_second 12.5\n",
           "keyformer_time_to_first_token_seconds_bucket{le=\"0.5\"} 1\n",
           "keyformer_request_queue_time_seconds_sum 0.25\n",
           "keyformer_request_prefill_time_seconds_sum 0.125\n",
           "keyformer_request_decode_time_seconds_sum 0.5\n",
       }) {
    EXPECT_THAT(text, HasSubstr(line));
  }
}

TEST(Metrics, TellsWhereAStepsTimeGoes) {
  Metrics metrics;
  metrics.OnStep({.prompt_tokens = 100,
                  .prefilled = true,
                  .seconds = 0.5,
                  .prefill_seconds = 0.25,
                  .replay_seconds = 0.125});
  metrics.OnStep({.decode_rows = 3,
                  .seconds = 2.0,
                  .decode_seconds = 2.0,
                  .attention_seconds = 0.5,
                  .sampling_seconds = 0.25});
  const std::string text = metrics.Render(nullptr);
  for (const char* line : {
           "keyformer_iteration_tokens_total 103\n",
           "keyformer_batch_size_sum 3\n",
           "keyformer_batch_size_count 1\n",
           "keyformer_decode_step_seconds_sum 2\n",
           "keyformer_decode_step_seconds_count 1\n",
           "keyformer_prefill_slice_seconds_sum 0.375\n",
           "keyformer_prefill_slice_seconds_count 1\n",
           "keyformer_step_seconds_total{part=\"decode_attention\"} 0.5\n",
           "keyformer_step_seconds_total{part=\"decode_sampling\"} 0.25\n",
           "keyformer_step_seconds_total{part=\"decode_products\"} 1.25\n",
           "keyformer_step_seconds_total{part=\"prefill\"} 0.25\n",
           "keyformer_step_seconds_total{part=\"replay\"} 0.125\n",
           "keyformer_step_seconds_total{part=\"other\"} 0.125\n",
       }) {
    EXPECT_THAT(text, HasSubstr(line));
  }
}

// Requests come and end while pages are read: on each page all are accounted
// for.
TEST(Metrics, AddUpInEveryScrape) {
  Metrics metrics;
  std::atomic<bool> over{false};
  std::vector<std::thread> threads;
  for (int thread = 0; thread < 2; ++thread) {
    threads.emplace_back([&] {
      for (int i = 0; !over; ++i) {
        metrics.OnReceived();
        if (i % 3 == 0) {
          metrics.OnRejected(engine::RejectReason::kQueueFull);
        } else if (i % 3 == 1) {
          metrics.OnSucceeded(engine::FinishReason::kEos, {}, 1.0);
        } else {
          metrics.OnCancelled();
        }
        metrics.OnRefused(absl::StatusCode::kNotFound);
      }
    });
  }
  engine::EngineStats stats;
  stats.running = 1;
  for (int i = 0; i < 300; ++i) {
    const tools::RequestCounts counts =
        tools::MetricsPage(metrics.Render(&stats)).Requests();
    EXPECT_EQ(counts.received, counts.accounted_for());
    EXPECT_GE(counts.running, 0.0);
    EXPECT_LE(counts.running + counts.waiting, 2.0);
  }
  over = true;
  for (std::thread& thread : threads) thread.join();
  EXPECT_GT(tools::MetricsPage(metrics.Render(&stats)).Requests().received,
            0.0);
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
