#include "tools/bench/workload.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

namespace kf::tools {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Lt;
using ::testing::SizeIs;

constexpr char kTrace[] =
    "{\"arrival_ms\": 0, \"prompt_tokens\": 9, \"output_tokens\": 3}\n"
    "\n"
    "{\"arrival_ms\": 250.5, \"prompt_tokens\": 1, \"output_tokens\": 1}";

TEST(ParseTrace, ReadsEachLine) {
  const auto plan = ParseTrace(kTrace);
  ASSERT_TRUE(plan.ok()) << plan.status();
  ASSERT_THAT(*plan, SizeIs(2));
  EXPECT_EQ((*plan)[0].prompt_tokens, 9U);
  EXPECT_EQ((*plan)[0].output_tokens, 3U);
  EXPECT_EQ((*plan)[1].arrival_s, 0.2505);
}

struct BadTrace {
  const char* name;
  std::string text;
  std::string message;
};

class BadTraceTest : public ::testing::TestWithParam<BadTrace> {};

TEST_P(BadTraceTest, NamesLineAndField) {
  const auto plan = ParseTrace(GetParam().text);
  ASSERT_TRUE(absl::IsInvalidArgument(plan.status()));
  EXPECT_THAT(std::string(plan.status().message()),
              HasSubstr(GetParam().message));
}

std::string Line(const std::string& arrival, const std::string& prompt) {
  return "{\"arrival_ms\": " + arrival + ", \"prompt_tokens\": " + prompt +
         ", \"output_tokens\": 2}\n";
}

INSTANTIATE_TEST_SUITE_P(
    Cases,
    BadTraceTest,
    ::testing::Values(
        BadTrace{"Empty", "\n", "no request"},
        BadTrace{"NoJson", Line("0", "1") + "nonsense", "line 2: no JSON"},
        BadTrace{"Array", "[1]", "line 1: no JSON object"},
        BadTrace{"Missing", "{\"arrival_ms\": 0}", "prompt_tokens: missing"},
        BadTrace{"Text", Line("0", "\"9\""), "prompt_tokens: missing or no"},
        BadTrace{"Zero", Line("0", "0"), "prompt_tokens: 0, want [1"},
        BadTrace{"Huge", Line("0", "1e300"), "prompt_tokens: 1e+300"},
        BadTrace{"Negative", Line("-1", "1"), "arrival_ms: -1"},
        BadTrace{"Backwards", Line("5", "1") + Line("4", "1"), "line 2"}),
    [](const auto& param_info) { return param_info.param.name; });

TEST(UniformPlan, WithoutARateNothingHasAnArrival) {
  const auto plan = UniformPlan(5, 10, 20, 0.0, 1);
  ASSERT_THAT(plan, SizeIs(5));
  for (const PlannedRequest& request : plan) {
    EXPECT_EQ(request.prompt_tokens, 10U);
    EXPECT_EQ(request.output_tokens, 20U);
    EXPECT_FALSE(request.arrival_s.has_value());
  }
}

TEST(UniformPlan, ArrivesAtTheRateAndAlikeForASeed) {
  const auto plan = UniformPlan(10000, 1, 1, 50.0, 7);
  double before = 0.0;
  for (const PlannedRequest& request : plan) {
    ASSERT_GE(*request.arrival_s, before);
    before = *request.arrival_s;
  }
  // 10,000 gaps of mean 20 ms: the sum's standard deviation is 2 s.
  EXPECT_NEAR(before, 200.0, 10.0);
  EXPECT_EQ(UniformPlan(10000, 1, 1, 50.0, 7).back().arrival_s, before);
  EXPECT_NE(UniformPlan(10000, 1, 1, 50.0, 8).back().arrival_s, before);
}

TEST(PromptMaker, DrawsIdsOfTheVocabulary) {
  PromptMaker maker(30, {}, 3);
  const std::vector<uint32_t> prompt = maker.Make(500);
  EXPECT_THAT(prompt, SizeIs(500));
  EXPECT_THAT(prompt, Each(Lt(30U)));
  EXPECT_EQ(PromptMaker(30, {}, 3).Make(500), prompt);
  EXPECT_NE(maker.Make(500), prompt);
}

TEST(PromptMaker, CutsStretchesOfATextAndWrapsAround) {
  PromptMaker maker(30, {5, 6, 7}, 3);
  const std::vector<uint32_t> prompt = maker.Make(7);
  ASSERT_THAT(prompt, SizeIs(7));
  for (size_t i = 1; i < prompt.size(); ++i) {
    EXPECT_EQ(prompt[i], prompt[i - 1] == 7 ? 5 : prompt[i - 1] + 1);
  }
}

}  // namespace
}  // namespace kf::tools
