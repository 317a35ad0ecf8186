// What ValidateRequest refuses, with the message a client sees.
#include "engine/request_validation.h"

#include <cctype>
#include <functional>
#include <limits>
#include <string>

#include "gtest/gtest.h"
#include "kernels/core/status.h"

namespace kf::engine {
namespace {

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();
constexpr double kInf = std::numeric_limits<double>::infinity();
constexpr uint32_t kHuge = std::numeric_limits<uint32_t>::max();

RequestLimits Limits() {
  return {.vocabulary = 100, .context_tokens = 1000, .layers = 4};
}

Request Valid(size_t prompt_tokens = 100) {
  Request r;
  r.prompt.assign(prompt_tokens, 1);
  r.cache.min_tokens = 1;
  return r;
}

using Edit = std::function<void(Request&)>;

struct RefusedCase {
  std::string name;
  Edit edit;
  std::string message;  // the whole of it
};
void PrintTo(const RefusedCase& c, std::ostream* os) { *os << c.name; }

class RefusedTest : public testing::TestWithParam<RefusedCase> {};

TEST_P(RefusedTest, NamesFieldValueAndLimit) {
  Request r = Valid();
  ASSERT_TRUE(ValidateRequest(r, Limits()).ok());
  GetParam().edit(r);
  const absl::Status status = ValidateRequest(r, Limits()).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(ToStd(status.message()), GetParam().message);
}

// One case per bad value of a real field: NaN, both infinities and the rest.
std::vector<RefusedCase> BadReals() {
  struct Field {
    std::string name;
    std::function<void(Request&, double)> set;
    std::vector<double> also_bad;
    std::string want;
  };
  const std::string penalty = "want -1e9 to 1e9";
  const std::vector<Field> fields = {
      {"sampling.temperature",
       [](Request& r, double v) { r.sampling.temperature = v; },
       {-1e-9, -1e300},
       "want a finite number >= 0"},
      {"sampling.top_p",
       [](Request& r, double v) { r.sampling.top_p = v; },
       {-0.5, 1.5, 1e300},
       "want 0 <= top_p <= 1 (0: off)"},
      {"sampling.min_p",
       [](Request& r, double v) { r.sampling.min_p = v; },
       {-0.5, 1.5, 1e300},
       "want 0 <= min_p <= 1 (0: off)"},
      {"sampling.typical_p",
       [](Request& r, double v) { r.sampling.typical_p = v; },
       {-0.5, 1.5, 1e300},
       "want 0 <= typical_p <= 1 (0: off)"},
      {"sampling.repetition_penalty",
       [](Request& r, double v) { r.sampling.repetition_penalty = v; },
       {-1.0, 1e-300, 1e300},
       "want 0 (off), or 0.001 to 1000"},
      {"sampling.presence_penalty",
       [](Request& r, double v) { r.sampling.presence_penalty = v; },
       {-1e300, 1e300},
       penalty},
      {"sampling.frequency_penalty",
       [](Request& r, double v) { r.sampling.frequency_penalty = v; },
       {-1e300, 1e300},
       penalty},
      {"sampling.logit_bias[3]",
       [](Request& r, double v) { r.sampling.logit_bias[3] = v; },
       {-1e300, 1e300},
       penalty},
      {"stopping.time_limit_ms",
       [](Request& r, double v) { r.stopping.time_limit_ms = v; },
       {-1.0, 1e300},
       "want 0 <= time_limit_ms <= 1e12 (0: off)"},
      {"cache.ratio",
       [](Request& r, double v) { r.cache.ratio = v; },
       {0.0, -0.5, 1.5, 1e300},
       "want 0 < ratio <= 1"},
      {"cache.recent_ratio",
       [](Request& r, double v) { r.cache.recent_ratio = v; },
       {-0.5, 1.5, 1e300},
       "want 0 <= recent_ratio <= 1"},
      {"cache.tau_init",
       [](Request& r, double v) { r.cache.tau_init = v; },
       {0.0, -0.0, -1.0, -1e-300},
       "want a finite number > 0"},
      {"cache.tau_end",
       [](Request& r, double v) { r.cache.tau_end = v; },
       {0.0, -0.0, -1.0, -1e-300},
       "want a finite number > 0"},
  };
  std::vector<RefusedCase> cases;
  for (const Field& f : fields) {
    std::vector<double> values = {kNaN, kInf, -kInf};
    values.insert(values.end(), f.also_bad.begin(), f.also_bad.end());
    for (const double v : values) {
      std::string name = absl::StrCat(f.name, "_", cases.size());
      for (char& c : name) c = std::isalnum(c) != 0 ? c : '_';
      cases.push_back({name, [set = f.set, v](Request& r) { set(r, v); },
                       absl::StrCat(f.name, ": ", v, ", ", f.want)});
    }
  }
  return cases;
}

INSTANTIATE_TEST_SUITE_P(Reals,
                         RefusedTest,
                         testing::ValuesIn(BadReals()),
                         [](const auto& test) { return test.param.name; });

INSTANTIATE_TEST_SUITE_P(
    Counts,
    RefusedTest,
    testing::Values(
        RefusedCase{"EmptyPrompt", [](Request& r) { r.prompt.clear(); },
                    "the prompt: 0 tokens, want at least 1"},
        RefusedCase{
            "PromptFillsContext", [](Request& r) { r.prompt.assign(1000, 1); },
            "the prompt: 1000 tokens, want fewer than the model's context "
            "of 1000"},
        RefusedCase{"PromptIdTooLarge", [](Request& r) { r.prompt[7] = 100; },
                    "token_ids.ids[7]: 100, want a token id from 0 to 99"},
        RefusedCase{"PromptIdNegative", [](Request& r) { r.prompt[0] = -1; },
                    "token_ids.ids[0]: -1, want a token id from 0 to 99"},
        RefusedCase{"ForcedIdTooLarge",
                    [](Request& r) {
                      r.forced_tokens = {1, 100};
                    },
                    "forced_tokens.ids[1]: 100, want a token id from 0 to 99"},
        RefusedCase{"ForcedWithOtherMaxNewTokens",
                    [](Request& r) {
                      r.forced_tokens = {1, 2};
                      r.stopping.max_new_tokens = 3;
                    },
                    "stopping.max_new_tokens: 3, want none, or the number of "
                    "forced_tokens (2)"},
        RefusedCase{"BiasOnNoToken",
                    [](Request& r) { r.sampling.logit_bias[100] = 1.0; },
                    "sampling.logit_bias[100]: no such token, want an id from "
                    "0 to 99"},
        RefusedCase{"StopStringEmpty",
                    [](Request& r) {
                      r.stopping.stop = {"a", ""};
                    },
                    "stopping.stop[1]: 0 bytes, want 1 to 1024"},
        RefusedCase{
            "StopStringLong",
            [](Request& r) { r.stopping.stop = {std::string(1025, 'a')}; },
            "stopping.stop[0]: 1025 bytes, want 1 to 1024"},
        RefusedCase{"StopStringsMany",
                    [](Request& r) { r.stopping.stop.assign(17, "a"); },
                    "stopping.stop: 17 strings, want at most 16"},
        RefusedCase{"StopIdsMany",
                    [](Request& r) { r.stopping.stop_token_ids.assign(17, 1); },
                    "stopping.stop_token_ids: 17 ids, want at most 16"},
        RefusedCase{"StopIdTooLarge",
                    [](Request& r) { r.stopping.stop_token_ids = {100}; },
                    "stopping.stop_token_ids[0]: 100, want a token id from 0 "
                    "to 99"},
        RefusedCase{"MinAboveMax",
                    [](Request& r) {
                      r.stopping.max_new_tokens = 4;
                      r.stopping.min_new_tokens = 5;
                    },
                    "stopping.min_new_tokens: 5, want at most max_new_tokens "
                    "(4)"},
        RefusedCase{"MinHuge",
                    [](Request& r) { r.stopping.min_new_tokens = kHuge; },
                    "stopping.min_new_tokens: 4294967295, want at most "
                    "max_new_tokens (256)"},
        RefusedCase{"BudgetZero", [](Request& r) { r.cache.tokens = 0; },
                    "cache.tokens: 0, want at least 1"},
        RefusedCase{"MinTokensZero", [](Request& r) { r.cache.min_tokens = 0; },
                    "cache.min_tokens: 0, want at least 1"},
        RefusedCase{"RecentAboveBudget",
                    [](Request& r) { r.cache.recent_tokens = 51; },
                    "cache.recent_tokens: 51, want at most the budget of 50 "
                    "tokens"},
        RefusedCase{"RecentHuge",
                    [](Request& r) { r.cache.recent_tokens = kHuge; },
                    "cache.recent_tokens: 4294967295, want at most the budget "
                    "of 50 tokens"},
        RefusedCase{"TopLogprobsHuge",
                    [](Request& r) {
                      r.output.logprobs = true;
                      r.output.top_logprobs = kHuge;
                    },
                    "output.top_logprobs: 4294967295, want at most 64"},
        RefusedCase{"TopLogprobsAlone",
                    [](Request& r) { r.output.top_logprobs = 1; },
                    "output.top_logprobs: 1, want 0 unless logprobs or "
                    "prompt_logprobs is set"}),
    [](const auto& test) { return test.param.name; });

// Of 4 layers.
INSTANTIATE_TEST_SUITE_P(
    LayerWeights,
    RefusedTest,
    testing::Values(
        RefusedCase{"TooFew",
                    [](Request& r) {
                      r.cache.layer_weights = {1, 1, 1};
                    },
                    "cache.layer_weights: 3 numbers, want one for each of the "
                    "4 layers"},
        RefusedCase{"Negative",
                    [](Request& r) {
                      r.cache.layer_weights = {1, -1, 2, 2};
                    },
                    "cache.layer_weights[1]: -1, want a finite number >= 0"},
        RefusedCase{"NotANumber",
                    [](Request& r) {
                      r.cache.layer_weights = {1, 1, kNaN, 1};
                    },
                    "cache.layer_weights[2]: nan, want a finite number >= 0"},
        RefusedCase{"Infinite",
                    [](Request& r) {
                      r.cache.layer_weights = {kInf, 1, 1, 1};
                    },
                    "cache.layer_weights[0]: inf, want a finite number >= 0"},
        RefusedCase{"OverflowingSum",
                    [](Request& r) {
                      r.cache.layer_weights = {1.7e308, 1.7e308, 1, 1};
                    },
                    "cache.layer_weights: their mean is inf, want 1 (within "
                    "1e-6)"},
        RefusedCase{"OtherMean",
                    [](Request& r) {
                      r.cache.layer_weights = {1, 1, 1, 1.5};
                    },
                    "cache.layer_weights: their mean is 1.125, want 1 (within "
                    "1e-6)"},
        RefusedCase{"Full",
                    [](Request& r) {
                      r.cache.policy = CachePolicy::kFull;
                      r.cache.layer_weights = {1, 1, 1, 1};
                    },
                    "cache.layer_weights: policy FULL evicts nothing, want "
                    "WINDOW, H2O or KEYFORMER"},
        RefusedCase{"Quest",
                    [](Request& r) {
                      r.cache.policy = CachePolicy::kQuest;
                      r.cache.layer_weights = {1, 1, 1, 1};
                    },
                    "cache.layer_weights: policy QUEST evicts nothing, want "
                    "WINDOW, H2O or KEYFORMER"},
        RefusedCase{"ScopeModel",
                    [](Request& r) {
                      r.cache.scope = SelectionScope::kModel;
                      r.cache.layer_weights = {1, 1, 1, 1};
                    },
                    "cache.layer_weights: cache.scope is MODEL, one set for "
                    "all layers, want HEAD or LAYER"}),
    [](const auto& test) { return test.param.name; });

TEST(ValidateRequestTest, TooManyBiases) {
  Request r = Valid();
  RequestLimits limits = Limits();
  limits.max_logit_bias = 2;
  r.sampling.logit_bias = {{1, 1.0}, {2, 1.0}, {3, 1.0}};
  EXPECT_EQ(ToStd(ValidateRequest(r, limits).status().message()),
            "sampling.logit_bias: 3 entries, want at most 2");
}

TEST(ValidateRequestTest, EdgesThatAreAllowed) {
  const Edit edits[] = {
      [](Request& r) { r.sampling.temperature = 1e300; },
      [](Request& r) { r.sampling.temperature = 5e-324; },
      [](Request& r) { r.sampling.temperature = -0.0; },
      [](Request& r) { r.sampling.top_k = kHuge; },
      [](Request& r) { r.sampling.top_p = 1.0; },
      [](Request& r) {
        r.sampling.logit_bias = {{0, -1e9}, {99, 1e9}};
      },
      [](Request& r) { r.sampling.repetition_penalty = 0.001; },
      [](Request& r) { r.stopping.time_limit_ms = 1e12; },
      [](Request& r) { r.stopping.max_new_tokens = kHuge; },
      [](Request& r) { r.cache.ratio = 1.0; },
      [](Request& r) { r.cache.ratio = 5e-324; },
      [](Request& r) { r.cache.recent_ratio = 1.0; },
      [](Request& r) { r.cache.score_queries = kHuge; },
      [](Request& r) { r.cache.tau_init = 5e-324; },
      [](Request& r) { r.cache.tau_init = 1.7e308; },
      [](Request& r) { r.cache.tau_end = 1e-300; },
      [](Request& r) { r.cache.tau_end = 1e300; },
      [](Request& r) { r.prompt.assign(999, 99); },
      [](Request& r) { r.priority = std::numeric_limits<int32_t>::min(); },
      [](Request& r) {
        r.forced_tokens = {1, 2};
        r.stopping.max_new_tokens = 2;
        r.output.top_logprobs = 2;
      },
  };
  for (size_t i = 0; i < std::size(edits); ++i) {
    Request r = Valid();
    edits[i](r);
    EXPECT_TRUE(ValidateRequest(r, Limits()).ok()) << "edit " << i;
  }
}

}  // namespace
}  // namespace kf::engine
