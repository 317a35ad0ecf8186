// The sizes of a request, and the rules of its cache (docs/keyformer.md,
// Sizes), as ValidateRequest fixes them.
#include "engine/cache/request_sizes.h"

#include <functional>
#include <limits>
#include <ostream>
#include <string>
#include <vector>

#include "engine/request_validation.h"
#include "gtest/gtest.h"

namespace kf::engine {
namespace {

constexpr uint32_t kHuge = std::numeric_limits<uint32_t>::max();

RequestLimits Limits() {
  return {.vocabulary = 100, .context_tokens = 1000, .layers = 4};
}

Request Valid(size_t prompt_tokens) {
  Request r;
  r.prompt.assign(prompt_tokens, 1);
  r.cache.min_tokens = 1;
  return r;
}

using Edit = std::function<void(Request&)>;

struct SizesCase {
  std::string name;
  Edit edit;
  RequestSizes want;
};
void PrintTo(const SizesCase& c, std::ostream* os) { *os << c.name; }

class SizesTest : public ::testing::TestWithParam<SizesCase> {};

TEST_P(SizesTest, Come) {
  Request r = Valid(100);
  r.stopping.max_new_tokens = 50;
  GetParam().edit(r);
  const absl::StatusOr<RequestSizes> got = ValidateRequest(r, Limits());
  ASSERT_TRUE(got.ok()) << got.status();
  const RequestSizes& want = GetParam().want;
  EXPECT_EQ(got->prompt_tokens, want.prompt_tokens);
  EXPECT_EQ(got->max_new_tokens, want.max_new_tokens);
  EXPECT_EQ(got->cut_by_context, want.cut_by_context);
  EXPECT_EQ(got->budget, want.budget);
  EXPECT_EQ(got->recent, want.recent);
}

INSTANTIATE_TEST_SUITE_P(
    All,
    SizesTest,
    ::testing::Values(
        SizesCase{"Defaults", [](Request&) {}, {100, 50, false, 50, 15}},
        SizesCase{"Full",
                  [](Request& r) { r.cache.policy = CachePolicy::kFull; },
                  {100, 50, false, 150, 150}},
        SizesCase{"H2O",
                  [](Request& r) { r.cache.policy = CachePolicy::kH2O; },
                  {100, 50, false, 50, 15}},
        SizesCase{"Total",
                  [](Request& r) { r.cache.basis = BudgetBasis::kTotal; },
                  {100, 50, false, 75, 22}},
        SizesCase{"Tokens",
                  [](Request& r) { r.cache.tokens = 7; },
                  {100, 50, false, 7, 2}},
        SizesCase{"MinTokens",
                  [](Request& r) { r.cache.min_tokens = 256; },
                  {100, 50, false, 256, 76}},
        SizesCase{"MinTokensYieldsToTokens",
                  [](Request& r) {
                    r.cache.min_tokens = 256;
                    r.cache.tokens = 9;
                  },
                  {100, 50, false, 9, 2}},
        SizesCase{"RecentTokensZero",
                  [](Request& r) { r.cache.recent_tokens = 0; },
                  {100, 50, false, 50, 0}},
        SizesCase{"RecentTokensAll",
                  [](Request& r) { r.cache.recent_tokens = 50; },
                  {100, 50, false, 50, 50}},
        // 0.29 x 100 is 28.999999999999996 in double.
        SizesCase{"FloorForgivesRounding",
                  [](Request& r) { r.cache.ratio = 0.29; },
                  {100, 50, false, 29, 8}},
        SizesCase{"RecentFloor",
                  [](Request& r) { r.cache.tokens = 10; },
                  {100, 50, false, 10, 3}},
        SizesCase{"TinyRatioGivesMinTokens",
                  [](Request& r) { r.cache.ratio = 1e-300; },
                  {100, 50, false, 1, 0}},
        SizesCase{"LargestBudget",
                  [](Request& r) {
                    r.cache.tokens = 1U << 30;
                    r.cache.recent_ratio = 1.0;
                  },
                  {100, 50, false, 1 << 30, 1 << 30}},
        // All of it, whatever there is: no context comes near 2^30.
        SizesCase{"BudgetOfEverything",
                  [](Request& r) {
                    r.cache.tokens = kHuge;
                    r.cache.recent_tokens = kHuge;
                  },
                  {100, 50, false, 1 << 30, 1 << 30}},
        SizesCase{"MinTokensOfEverything",
                  [](Request& r) { r.cache.min_tokens = kHuge; },
                  {100, 50, false, 1 << 30, 1 << 30}},
        SizesCase{"NothingToGenerate",
                  [](Request& r) { r.stopping.max_new_tokens = 0; },
                  {100, 0, false, 50, 15}},
        SizesCase{"DefaultMaxNewTokens",
                  [](Request& r) { r.stopping.max_new_tokens.reset(); },
                  {100, 256, false, 50, 15}},
        SizesCase{"FillsContext",
                  [](Request& r) { r.stopping.max_new_tokens = 900; },
                  {100, 900, false, 50, 15}},
        SizesCase{"CutByContext",
                  [](Request& r) { r.stopping.max_new_tokens = 901; },
                  {100, 900, true, 50, 15}},
        SizesCase{"CutBeforeTheBasis",
                  [](Request& r) {
                    r.stopping.max_new_tokens = kHuge;
                    r.cache.basis = BudgetBasis::kTotal;
                  },
                  {100, 900, true, 500, 150}},
        SizesCase{"Forced",
                  [](Request& r) {
                    r.stopping.max_new_tokens.reset();
                    r.forced_tokens = {1, 2, 3};
                  },
                  {100, 3, false, 50, 15}},
        SizesCase{"ForcedBeyondContext",
                  [](Request& r) {
                    r.prompt.assign(999, 1);
                    r.stopping.max_new_tokens.reset();
                    r.forced_tokens = {1, 2, 3};
                  },
                  {999, 1, true, 499, 149}},
        // recent_ratio, even recent_tokens, is not read.
        SizesCase{"Window",
                  [](Request& r) {
                    r.cache.policy = CachePolicy::kWindow;
                    r.cache.recent_tokens = 1000;
                  },
                  {100, 50, false, 50, 46}},
        SizesCase{"WindowOfSinks",
                  [](Request& r) {
                    r.cache.policy = CachePolicy::kWindow;
                    r.cache.tokens = 3;
                  },
                  {100, 50, false, 3, 1}},
        SizesCase{"WindowOfOne",
                  [](Request& r) {
                    r.cache.policy = CachePolicy::kWindow;
                    r.cache.tokens = 1;
                    r.cache.sinks = kHuge;
                  },
                  {100, 50, false, 1, 1}},
        SizesCase{"Quest",
                  [](Request& r) { r.cache.policy = CachePolicy::kQuest; },
                  {100, 50, false, 50, 0}}),
    [](const auto& test) { return test.param.name; });

// The rules of a request of 100 prompt tokens and 50 to come, over 4 layers.
CacheRules Rules(const Edit& edit) {
  Request r = Valid(100);
  r.stopping.max_new_tokens = 50;
  edit(r);
  const absl::StatusOr<RequestSizes> sizes = ValidateRequest(r, Limits());
  EXPECT_TRUE(sizes.ok()) << sizes.status();
  return sizes.ok() ? sizes->rules : CacheRules();
}

using LayerSizes = std::vector<LayerSize>;

TEST(RulesTest, WeightsShareTheBudgetOut) {
  const auto weighted = [](std::vector<double> weights, const Edit& edit) {
    return Rules([&](Request& r) {
             r.cache.layer_weights = weights;
             edit(r);
           })
        .sizes;
  };
  EXPECT_EQ(weighted({0.6, 2.0, 0.9, 0.5}, [](Request&) {}),
            (LayerSizes{{30, 9}, {100, 30}, {45, 13}, {25, 7}}));
  EXPECT_EQ(weighted({0.6, 2.0, 0.9, 0.5},
                     [](Request& r) { r.cache.recent_tokens = 26; }),
            (LayerSizes{{30, 26}, {100, 26}, {45, 26}, {25, 25}}));
  EXPECT_EQ(weighted({0.6, 2.0, 0.06, 1.34},
                     [](Request& r) { r.cache.policy = CachePolicy::kWindow; }),
            (LayerSizes{{30, 26}, {100, 96}, {3, 1}, {67, 63}}));
  // Never nothing, never more than there will be.
  EXPECT_EQ(weighted({4, 0, 0, 0}, [](Request&) {}),
            (LayerSizes{{150, 45}, {1, 0}, {1, 0}, {1, 0}}));
  // 0.58 x 50 is 28.999999999999996 in double.
  EXPECT_EQ(weighted({0.58, 1, 1, 1.42}, [](Request&) {})[0],
            (LayerSize{29, 8}));
  EXPECT_EQ(weighted({1, 1, 1, 1 + 3e-6}, [](Request&) {}).size(), 4U);
  EXPECT_EQ(
      weighted({1, 1, 1, 1}, [](Request& r) { r.cache.tokens = kHuge; })[3],
      (LayerSize{150, 150}));
}

// Scope MODEL is the server's default, say: WINDOW does not read it.
TEST(RulesTest, WeightsWithAScopeThatIsNotRead) {
  const CacheRules rules = Rules([](Request& r) {
    r.cache.policy = CachePolicy::kWindow;
    r.cache.scope = SelectionScope::kModel;
    r.cache.layer_weights = {1, 1, 1, 1};
  });
  EXPECT_EQ(rules.scope, SelectionScope::kHead);
  EXPECT_FALSE(rules.scored);
}

TEST(RulesTest, OnlyWhatThePolicyReads) {
  const auto rules = [](CachePolicy policy) {
    return Rules([policy](Request& r) {
      r.cache.policy = policy;
      r.cache.scope = SelectionScope::kLayer;
      r.cache.positions = CachePositions::kCache;
      r.cache.score_norm = ScoreNorm::kAge;
      r.cache.score_queries = 30;
    });
  };
  const CacheRules h2o = rules(CachePolicy::kH2O);
  EXPECT_TRUE(h2o.scored && h2o.age && h2o.rank_positions);
  EXPECT_EQ(h2o.scope, SelectionScope::kLayer);
  EXPECT_EQ(h2o.prompt_rows, 30);
  EXPECT_EQ(h2o.read_pages, 0);
  const CacheRules window = rules(CachePolicy::kWindow);
  EXPECT_FALSE(window.scored || window.age);
  EXPECT_TRUE(window.rank_positions);
  EXPECT_EQ(window.scope, SelectionScope::kHead);
  const CacheRules full = rules(CachePolicy::kFull);
  EXPECT_FALSE(full.scored || full.age || full.rank_positions);
  const CacheRules quest = rules(CachePolicy::kQuest);
  EXPECT_FALSE(quest.scored || quest.age || quest.rank_positions);
  EXPECT_EQ(quest.sizes, (LayerSizes{{150, 150}}));
  EXPECT_EQ(quest.read_pages, 4);
  EXPECT_FALSE(quest.bounded(1));
  EXPECT_TRUE(quest.bounded(2));
}

TEST(RulesTest, QuestReadsAllWhereItsBudgetIsAll) {
  const auto read = [](uint32_t tokens) {
    return Rules([tokens](Request& r) {
             r.cache.policy = CachePolicy::kQuest;
             r.cache.tokens = tokens;
           })
        .read_pages;
  };
  EXPECT_EQ(read(1), 1);
  EXPECT_EQ(read(144), 9);
  EXPECT_EQ(read(145), 0);  // all ten pages of 150 tokens
  EXPECT_EQ(read(kHuge), 0);
}

// Scores are computed where a step will choose by them, or a report shows them
// or what they choose.
TEST(RulesTest, ScoresAreForChoosingAndReports) {
  const auto scored = [](uint32_t budget, uint32_t new_tokens,
                         CacheReportDetail report) {
    return Rules([=](Request& r) {
             r.cache.tokens = budget;
             r.stopping.max_new_tokens = new_tokens;
             r.cache_report = report;
           })
        .scored;
  };
  using enum CacheReportDetail;
  EXPECT_TRUE(scored(50, 50, kNone));
  EXPECT_TRUE(scored(148, 50, kNone));
  EXPECT_FALSE(scored(149, 50, kNone));  // n + T - 1: nothing goes
  EXPECT_FALSE(scored(149, 50, kSummary));
  EXPECT_TRUE(scored(149, 50, kFull));
  EXPECT_FALSE(scored(50, 1, kNone));
  EXPECT_TRUE(scored(50, 1, kSummary));
  EXPECT_TRUE(scored(50, 0, kSummary));
  EXPECT_FALSE(scored(100, 0, kSummary));
  // Without scores, the latest tokens.
  EXPECT_EQ(Rules([](Request& r) { r.stopping.max_new_tokens = 1; }).sizes,
            (LayerSizes{{50, 50}}));
}

}  // namespace
}  // namespace kf::engine
