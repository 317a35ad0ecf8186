#include "tools/client_lib/metrics_page.h"

#include <gtest/gtest.h>

namespace kf::tools {
namespace {

TEST(MetricsPage, ReadsSeriesAndSumsLabels) {
  const MetricsPage page(
      "HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n"
      "# HELP keyformer_requests_received_total All of them 1\n"
      "keyformer_requests_received_total 12\n"
      "keyformer_request_success_total{finish_reason=\"eos\"} 3\n"
      "keyformer_request_success_total{finish_reason=\"length\"} 2\n"
      "keyformer_request_success_totally{x=\"y\"} 100\n"
      "keyformer_request_cancelled_total 1\n"
      "keyformer_batch_size_bucket{le=\"4\"} 7\n"
      "keyformer_batch_size_count 8\n"
      "keyformer_num_requests_running 4\n"
      "keyformer_num_requests_waiting 2\n"
      "keyformer_kv_cache_usage_ratio 2.5e-1");
  EXPECT_EQ(page.Value("requests_received_total"), 12.0);
  EXPECT_EQ(page.Value("request_success_total{finish_reason=\"length\"}"), 2.0);
  EXPECT_EQ(page.Value("kv_cache_usage_ratio"), 0.25);
  EXPECT_EQ(page.Value("no_such_thing"), 0.0);
  EXPECT_EQ(page.Value("batch_size_count"), 8.0);
  EXPECT_EQ(page.Sum("batch_size_bucket"), 0.0);
  EXPECT_EQ(page.Sum("request_success_total"), 5.0);
  EXPECT_EQ(page.Sum("requests_received_total"), 12.0);
  const RequestCounts counts = page.Requests();
  EXPECT_EQ(counts.ended(), 6.0);
  EXPECT_EQ(counts.accounted_for(), counts.received);
}

TEST(MetricsPage, OfNothingIsEmpty) {
  EXPECT_TRUE(MetricsPage("").empty());
  EXPECT_TRUE(MetricsPage("HTTP/1.1 404 Not Found\r\n\r\n").empty());
}

}  // namespace
}  // namespace kf::tools
