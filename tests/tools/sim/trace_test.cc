#include "tools/sim/trace.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "tests/testing/matchers.h"

namespace kf::sim {
namespace {

using engine::CachePolicy;
using testing::IsOk;
using ::testing::SizeIs;
using testing::StatusIs;

TEST(ParseTraceTest, ReadsColumnsInAnyOrder) {
  const auto trace = ParseTrace(
      "# a comment\n"
      "prompt_tokens, output_tokens, arrival_s, ratio, policy, priority\r\n"
      "9,3,0,0.9,h2o,-2\r\n"
      "\n"
      "1,2,1.5,,full,\n"
      "4,5,1.5,,,7");
  ASSERT_THAT(trace, IsOk());
  ASSERT_THAT(*trace, SizeIs(3));
  const TraceRequest& first = (*trace)[0];
  EXPECT_EQ(first.prompt_tokens, 9);
  EXPECT_EQ(first.output_tokens, 3);
  EXPECT_EQ(first.policy, (PolicySpec{CachePolicy::kH2O, 0.9}));
  EXPECT_EQ(first.priority, -2);
  EXPECT_EQ((*trace)[1].arrival_s, 1.5);
  EXPECT_EQ((*trace)[1].policy->policy, CachePolicy::kFull);
  EXPECT_EQ((*trace)[1].priority, 0);
  EXPECT_EQ((*trace)[2].policy, std::nullopt);
}

TEST(ParseTraceTest, ReadsWhatItWrites) {
  auto trace = DrawTrace({.requests = 20,
                          .rate = 3.0,
                          .prompt_tokens = 100,
                          .output_tokens = 10,
                          .spread = 1.0,
                          .seed = 7});
  trace[3].policy = PolicySpec{CachePolicy::kKeyformer, 0.25};
  trace[4].policy = PolicySpec{CachePolicy::kFull, 0.5};
  trace[5].priority = 3;
  const std::string text = FormatTrace(trace);
  const auto again = ParseTrace(text);
  ASSERT_THAT(again, IsOk());
  EXPECT_EQ(FormatTrace(*again), text);
  EXPECT_EQ((*again)[3].policy, trace[3].policy);
}

constexpr char kHeader[] = "arrival_s,prompt_tokens,output_tokens";

struct BadTrace {
  const char* name;
  std::string text;
  std::string message;
};
void PrintTo(const BadTrace& bad, std::ostream* out) { *out << bad.name; }

class BadTraceTest : public ::testing::TestWithParam<BadTrace> {};

TEST_P(BadTraceTest, NamesLineFieldValueAndLimit) {
  EXPECT_THAT(ParseTrace(GetParam().text),
              StatusIs(absl::StatusCode::kInvalidArgument, GetParam().message));
}

std::string Line(const std::string& line) {
  return std::string(kHeader) + "\n" + line + "\n";
}
std::string PolicyLine(const std::string& line) {
  return std::string(kHeader) + ",policy,ratio\n" + line + "\n";
}

INSTANTIATE_TEST_SUITE_P(
    Cases,
    BadTraceTest,
    ::testing::Values(
        BadTrace{"Empty", "", "no request"},
        BadTrace{"HeaderOnly", kHeader, "no request"},
        BadTrace{"NoHeader", "0,1,2\n", "line 1: column \"0\": unknown"},
        BadTrace{"Unknown", "arrival_ms,prompt_tokens,output_tokens\n",
                 "column \"arrival_ms\": unknown, want arrival_s"},
        BadTrace{"Missing", "arrival_s,prompt_tokens\n",
                 "column output_tokens: missing"},
        BadTrace{"Twice", "arrival_s,arrival_s\n", "arrival_s: twice"},
        BadTrace{"RatioAlone", std::string(kHeader) + ",ratio\n",
                 "column ratio: wants a column policy"},
        BadTrace{"FewFields", Line("0,1"), "line 2: 2 fields, want 3"},
        BadTrace{"ManyFields", Line("0,1,2,3"), "4 fields, want 3"},
        BadTrace{"Text", Line("0,x,1"), "prompt_tokens: \"x\", want a number"},
        BadTrace{"Blank", Line("0,,1"), "prompt_tokens: \"\", want a number"},
        BadTrace{"Tail", Line("0,1z,1"), "prompt_tokens: \"1z\", want a num"},
        BadTrace{"NaN", Line("nan,1,1"), "arrival_s: \"nan\", want a number"},
        BadTrace{"Infinite", Line("inf,1,1"), "arrival_s: \"inf\", want a"},
        BadTrace{"Huge", Line("1e999,1,1"), "arrival_s: \"1e999\", want a"},
        BadTrace{"Late", Line("2e9,1,1"), "arrival_s: 2e9, want 0 to 1e+09"},
        BadTrace{"Negative", Line("-1,1,1"), "arrival_s: -1, want 0 to"},
        BadTrace{"NoPrompt", Line("0,0,1"), "prompt_tokens: 0, want 1 to"},
        BadTrace{"NoOutput", Line("0,1,0"), "output_tokens: 0, want 1 to"},
        BadTrace{"Long", Line("0,99999999999,1"),
                 "prompt_tokens: 99999999999, want 1 to"},
        BadTrace{"Half", Line("0,1.5,1"), "1.5, want a whole number"},
        BadTrace{"Back", Line("1,1,1\n0.5,1,1"),
                 "line 3: arrival_s: 0.5, want at least the line above's 1"},
        BadTrace{"Policy", PolicyLine("0,1,1,lru,"), "policy: \"lru\", want"},
        BadTrace{"Ratio", PolicyLine("0,1,1,h2o,1.5"),
                 "line 2: policy h2o: ratio \"1.5\", want 0 < ratio <= 1"},
        BadTrace{"FullRatio", PolicyLine("0,1,1,full,0.5"),
                 "want full without a ratio"},
        BadTrace{"NoPolicy", PolicyLine("0,1,1,,0.5"),
                 "ratio: 0.5, but policy is empty"},
        BadTrace{"Binary", std::string("\0\xff,\n", 4), "unknown"}),
    [](const auto& test) { return test.param.name; });

TEST(DrawTraceTest, SameSeedSameTrace) {
  SyntheticTrace options{.requests = 1000,
                         .rate = 10.0,
                         .prompt_tokens = 200,
                         .output_tokens = 50,
                         .spread = 0.8,
                         .max_tokens = 400,
                         .seed = 5};
  const std::string first = FormatTrace(DrawTrace(options));
  EXPECT_EQ(FormatTrace(DrawTrace(options)), first);
  options.seed = 6;
  EXPECT_NE(FormatTrace(DrawTrace(options)), first);
}

TEST(DrawTraceTest, HasTheRateTheMedianAndTheLimits) {
  const auto trace = DrawTrace({.requests = 10001,
                                .rate = 10.0,
                                .prompt_tokens = 200,
                                .output_tokens = 50,
                                .spread = 1.0,
                                .max_tokens = 400,
                                .seed = 5});
  EXPECT_NEAR(trace.back().arrival_s, 1000.0, 40.0);  // 4 sigma
  std::vector<int32_t> prompts;
  for (const TraceRequest& r : trace) {
    prompts.push_back(r.prompt_tokens);
    EXPECT_GE(r.output_tokens, 1);
    EXPECT_LE(r.prompt_tokens, 400);
  }
  std::sort(prompts.begin(), prompts.end());
  EXPECT_NEAR(prompts[5000], 200, 10);
  EXPECT_EQ(prompts.back(), 400);
}

TEST(ParsePoliciesTest, ReadsAList) {
  const auto specs = ParsePolicies("full,h2o:0.9,keyformer,quest:0.25");
  ASSERT_THAT(specs, IsOk());
  ASSERT_THAT(*specs, SizeIs(4));
  EXPECT_EQ(ToString((*specs)[0]), "full");
  EXPECT_EQ(ToString((*specs)[1]), "h2o:0.9");
  EXPECT_EQ(ToString((*specs)[2]), "keyformer:0.5");
  EXPECT_THAT(ParsePolicies("full,"),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       "policy: \"\", want full, window"));
}

}  // namespace
}  // namespace kf::sim
