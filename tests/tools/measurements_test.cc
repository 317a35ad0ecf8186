#include "tools/bench/measurements.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tools/bench/report.h"

namespace kf::tools {
namespace {

using ::testing::HasSubstr;

// An answer whose tokens come one at a time, `step_s` apart.
RequestRecord Answer(double start_s,
                     double first_s,
                     double step_s,
                     int tokens) {
  RequestRecord record;
  record.start_s = start_s;
  record.prompt_tokens = 100;
  record.cache_budget_tokens = 50;
  record.evicted_tokens = 60;
  for (int i = 0; i < tokens; ++i) {
    record.arrivals.push_back({first_s + i * step_s, 1});
  }
  record.end_s = record.arrivals.back().at_s;
  return record;
}

TEST(FindSteadyState, CountsOnlyWhereMostStreamsDecode) {
  // One decodes in [1, 9], the other in [3, 5]; both together 2 s, in which the
  // first brings 2 tokens and the second 4.
  const SteadyState steady =
      FindSteadyState({Answer(0, 1, 1.0, 9), Answer(2, 3, 0.5, 5)});
  EXPECT_EQ(steady.streams, 2U);
  EXPECT_DOUBLE_EQ(steady.seconds, 2.0);
  EXPECT_DOUBLE_EQ(steady.tokens_per_second, 3.0);
}

TEST(FindSteadyState, AHandOverIsNoOverlap) {
  const SteadyState steady =
      FindSteadyState({Answer(0, 1, 1.0, 3), Answer(0, 3, 1.0, 3)});
  EXPECT_EQ(steady.streams, 1U);
  EXPECT_DOUBLE_EQ(steady.seconds, 4.0);
  EXPECT_DOUBLE_EQ(steady.tokens_per_second, 1.0);
}

TEST(FindSteadyState, SingleTokensDecodeNothing) {
  EXPECT_EQ(FindSteadyState({Answer(0, 1, 1.0, 1)}).streams, 0U);
  EXPECT_EQ(FindSteadyState({}).tokens_per_second, 0.0);
}

TEST(Measure, RatesTimesAndBudgets) {
  const Measurements measured =
      Measure({Answer(0, 1, 0.5, 3), Answer(2, 4, 1.0, 5)});
  EXPECT_EQ(measured.requests, 2U);
  EXPECT_EQ(measured.succeeded, 2U);
  EXPECT_DOUBLE_EQ(measured.seconds, 8.0);
  EXPECT_EQ(measured.output_tokens, 8U);
  EXPECT_DOUBLE_EQ(measured.output_tokens_per_second, 1.0);
  EXPECT_DOUBLE_EQ(measured.prompt_tokens_per_second, 25.0);
  EXPECT_DOUBLE_EQ(measured.requests_per_second, 0.25);
  EXPECT_DOUBLE_EQ(measured.mean_budget_tokens, 50.0);
  EXPECT_EQ(measured.evicted_tokens, 120U);
  EXPECT_EQ(measured.first_token_ms.count, 2U);
  EXPECT_DOUBLE_EQ(measured.first_token_ms.p50, 1000.0);
  EXPECT_DOUBLE_EQ(measured.first_token_ms.max, 2000.0);
  EXPECT_EQ(measured.inter_token_ms.count, 6U);
  EXPECT_DOUBLE_EQ(measured.inter_token_ms.max, 1000.0);
  EXPECT_DOUBLE_EQ(measured.request_ms.max, 6000.0);
}

TEST(Measure, AChunkOfManyTokensSharesItsGap) {
  RequestRecord record = Answer(0, 1, 1.0, 1);
  record.arrivals.push_back({3.0, 4});
  record.end_s = 3.0;
  const Measurements measured = Measure({record});
  EXPECT_EQ(measured.inter_token_ms.count, 4U);
  EXPECT_DOUBLE_EQ(measured.inter_token_ms.p50, 500.0);
  // But nothing came for as long as that.
  EXPECT_DOUBLE_EQ(measured.longest_gap_ms, 2000.0);
}

TEST(Measure, FailuresCountByCodeAndNotInTheTimes) {
  RequestRecord refused;
  refused.code = "RESOURCE_EXHAUSTED";
  refused.prompt_tokens = 100;
  RequestRecord cut = Answer(0, 1, 1.0, 2);
  cut.code = "UNAVAILABLE";
  const Measurements measured =
      Measure({refused, refused, cut, Answer(0, 1, 1.0, 2)});
  EXPECT_EQ(measured.succeeded, 1U);
  EXPECT_EQ(measured.errors.at("RESOURCE_EXHAUSTED"), 2U);
  EXPECT_EQ(measured.errors.at("UNAVAILABLE"), 1U);
  EXPECT_EQ(measured.first_token_ms.count, 1U);
  EXPECT_EQ(measured.prompt_tokens, 200U);
  EXPECT_THAT(ReportTable(measured), HasSubstr("2 x RESOURCE_EXHAUSTED"));
}

TEST(Measure, NothingMeasuredIsAllZero) {
  const Measurements measured = Measure({});
  EXPECT_EQ(measured.requests, 0U);
  EXPECT_EQ(measured.output_tokens_per_second, 0.0);
  EXPECT_THAT(ReportTable(measured), HasSubstr("0 ok of 0"));
}

TEST(ReportJson, CarriesWhatTheTableShows) {
  const nlohmann::json report =
      ReportJson(Measure({Answer(0, 1, 0.5, 3), Answer(0, 1, 0.5, 3)}));
  EXPECT_EQ(report["succeeded"], 2);
  EXPECT_EQ(report["steady"]["streams"], 2);
  EXPECT_EQ(report["steady"]["tokens_per_second"], 4.0);
  EXPECT_EQ(report["inter_token_ms"]["p99"], 500.0);
  EXPECT_TRUE(report["errors"].empty());
}

// Tokens 0 to 3 come a second apart, 4 to 7 two seconds apart, two at a time;
// the last bin is not half full.
TEST(SecondsPerToken, AreMediansOfBins) {
  RequestRecord record;
  record.arrivals = {{10.0, 1}, {11.0, 1}, {12.0, 1}, {13.0, 1},
                     {17.0, 2}, {21.0, 2}, {99.0, 1}};
  const std::vector<double> seconds = SecondsPerToken(record, 4);
  ASSERT_EQ(seconds.size(), 2U);
  EXPECT_DOUBLE_EQ(seconds[0], 1.0);
  EXPECT_DOUBLE_EQ(seconds[1], 2.0);
  EXPECT_TRUE(SecondsPerToken({}, 4).empty());
}

}  // namespace
}  // namespace kf::tools
