// What must hold of any model and prompt (docs/keyformer.md, Identities), and
// the faults of the paper's released code that show only between requests or in
// memory: scores summed over a batch, a budget that counts padding, memory that
// is never freed.
#include <algorithm>
#include <numeric>
#include <set>

#include "gtest/gtest.h"
#include "tests/golden/golden_support.h"
#include "tests/testing/temp_dir.h"

namespace kf::testing {
namespace {

using engine::CachePolicy;
using engine::CacheState;
using engine::Request;

constexpr int32_t kHeads = 8;
constexpr int32_t kKvHeads = 2;
constexpr int32_t kLayers = 3;
constexpr int32_t kNew = 40;

class IdentitiesTest : public ::testing::Test {
 protected:
  IdentitiesTest() {
    model_path_ = WriteTinyModel({.seed = 3,
                                  .layers = kLayers,
                                  .heads = kHeads,
                                  .kv_heads = kKvHeads,
                                  .head_dim = 16,
                                  .ffn = 128,
                                  .context = 512},
                                 folder_.File("tiny.gguf"));
  }

  std::unique_ptr<engine::Engine> Make(uint64_t kv_pool_bytes = 1 << 26) const {
    EngineSetup setup;
    setup.model_path = model_path_;
    setup.kv_pool_bytes = kv_pool_bytes;
    return MakeEngine(std::move(setup));
  }

  // Keyformer at half of an n-token prompt, in the paper's setting.
  static Request MakeRequest(int32_t n, uint32_t salt = 0) {
    Request r;
    for (int32_t i = 0; i < n; ++i) {
      r.prompt.push_back(static_cast<engine::TokenId>(
          MixBits(static_cast<uint32_t>(i) + 1000 * salt) % 256));
    }
    r.stopping.max_new_tokens = kNew;
    r.stopping.ignore_eos = true;
    r.output.logprobs = true;
    r.cache_report = engine::CacheReportDetail::kFull;
    r.cache.min_tokens = 1;
    r.cache.noise_seed = 17;
    return r;
  }

  Outcome Run(const Request& request) const {
    Outcome outcome = RunTogether(*engine_, {request}).front();
    EXPECT_TRUE(outcome.status.ok()) << outcome.status;
    return outcome;
  }

  TempDir folder_;
  std::string model_path_;
  std::unique_ptr<engine::Engine> engine_;
};

std::vector<std::vector<std::vector<int32_t>>> Positions(const CacheState& s) {
  std::vector<std::vector<std::vector<int32_t>>> result;
  for (const auto& layer : s) {
    auto& heads = result.emplace_back();
    for (const HeldTokens& head : layer) heads.push_back(head.positions);
  }
  return result;
}

void ExpectSameKept(const Outcome& a, const Outcome& b) {
  EXPECT_EQ(a.tokens, b.tokens);
  EXPECT_EQ(Positions(a.report.after_prompt), Positions(b.report.after_prompt));
  EXPECT_EQ(Positions(a.report.at_end), Positions(b.report.at_end));
}

TEST_F(IdentitiesTest, WholeBudgetIsFullBitForBit) {
  engine_ = Make();
  Request full = MakeRequest(100);
  full.cache.policy = CachePolicy::kFull;
  Request whole = MakeRequest(100);
  whole.cache.ratio = 1.0;
  whole.cache.basis = engine::BudgetBasis::kTotal;
  const Outcome a = Run(full);
  const Outcome b = Run(whole);
  ExpectSameKept(a, b);
  EXPECT_EQ(a.logprobs, b.logprobs);
}

TEST_F(IdentitiesTest, ConstantNoiseChangesNothing) {
  engine_ = Make();
  Request none = MakeRequest(100);
  none.cache.noise = NoiseKind::kNone;
  Request constant = none;
  constant.cache.noise = NoiseKind::kConstant;
  const Outcome a = Run(none);
  const Outcome b = Run(constant);
  ExpectSameKept(a, b);
  for (size_t layer = 0; layer < a.report.at_end.size(); ++layer) {
    for (size_t g = 0; g < kKvHeads; ++g) {
      const auto& x = a.report.at_end[layer][g].scores;
      const auto& y = b.report.at_end[layer][g].scores;
      ASSERT_EQ(x.size(), y.size());
      for (size_t i = 0; i < x.size(); ++i)
        EXPECT_NEAR(x[i], y[i], 1e-5F * x[i]);
    }
  }
}

TEST_F(IdentitiesTest, KeyformerWithoutNoiseAndTemperatureIsH2O) {
  engine_ = Make();
  Request keyformer = MakeRequest(100);
  keyformer.cache.noise = NoiseKind::kNone;
  keyformer.cache.tau_end = 1.0;
  Request h2o = MakeRequest(100);
  h2o.cache.policy = CachePolicy::kH2O;
  const Outcome a = Run(keyformer);
  const Outcome b = Run(h2o);
  ExpectSameKept(a, b);
  EXPECT_EQ(a.logprobs, b.logprobs);
}

// The noise does bite: else the identities above would say little.
TEST_F(IdentitiesTest, NoiseAndItsSeedMatter) {
  engine_ = Make();
  Request one = MakeRequest(100);
  Request other = one;
  other.cache.noise_seed = 18;
  const Outcome a = Run(one);
  EXPECT_NE(Positions(a.report.at_end), Positions(Run(other).report.at_end));
  ExpectSameKept(a, Run(one));
}

TEST_F(IdentitiesTest, LargeBudgetEvictsNothing) {
  engine_ = Make();
  Request r = MakeRequest(100);
  r.cache.tokens = 100 + kNew;
  const Outcome o = Run(r);
  EXPECT_EQ(o.usage.evicted_tokens, 0U);
  for (const auto& layer : Positions(o.report.at_end)) {
    for (const auto& head : layer) EXPECT_EQ(head.size(), 100U + kNew - 1);
  }
  // Every row's softmax adds up to 1 in each of the H/G heads of a group.
  for (const auto& layer : o.report.at_end) {
    for (const HeldTokens& head : layer) {
      const double sum =
          std::accumulate(head.scores.begin(), head.scores.end(), 0.0);
      EXPECT_NEAR(sum, (100 + kNew - 1) * (kHeads / kKvHeads), 1e-2);
    }
  }
}

TEST_F(IdentitiesTest, WindowOfTheBudgetKeepsTheNewest) {
  engine_ = Make();
  Request r = MakeRequest(100);
  r.cache.tokens = 20;
  r.cache.recent_tokens = 20;
  const Outcome o = Run(r);
  std::vector<int32_t> prompt(20);
  std::iota(prompt.begin(), prompt.end(), 80);
  std::vector<int32_t> end(20);
  std::iota(end.begin(), end.end(), 80 + kNew - 1);
  for (const auto& layer : Positions(o.report.after_prompt)) {
    for (const auto& head : layer) EXPECT_EQ(head, prompt);
  }
  for (const auto& layer : Positions(o.report.at_end)) {
    for (const auto& head : layer) EXPECT_EQ(head, end);
  }
}

TEST_F(IdentitiesTest, EachHeadHoldsItsBudgetWithTheNewest) {
  engine_ = Make();
  for (const int32_t n : {1, 5, 16, 33, 100}) {
    for (const int32_t k : {1, 7, 16, 40}) {
      Request r = MakeRequest(n);
      r.cache.tokens = static_cast<uint32_t>(k);
      const int32_t w = k / 3;
      r.cache.recent_tokens = static_cast<uint32_t>(w);
      const Outcome o = Run(r);
      const int32_t seen = n + kNew - 1;
      const auto held = static_cast<size_t>(std::min(k, seen));
      EXPECT_EQ(o.usage.cache_budget_tokens, static_cast<uint32_t>(k));
      EXPECT_EQ(o.usage.evicted_tokens,
                static_cast<uint32_t>(seen) - static_cast<uint32_t>(held));
      for (const auto& layer : Positions(o.report.at_end)) {
        for (const auto& head : layer) {
          ASSERT_EQ(head.size(), held);
          EXPECT_TRUE(std::is_sorted(head.begin(), head.end()));
          EXPECT_EQ(std::set(head.begin(), head.end()).size(), held);
          EXPECT_GE(head.front(), 0);
          for (int32_t i = 0; i < std::min(w, seen); ++i) {
            EXPECT_EQ(head[held - 1 - static_cast<size_t>(i)], seen - 1 - i);
          }
        }
      }
    }
  }
}

// --- faults that show between requests or in memory ---

TEST_F(IdentitiesTest, BatchedRequestsDoNotShareScores) {
  engine_ = Make();
  const std::vector<Request> pair = {MakeRequest(120, 1), MakeRequest(120, 2)};
  const std::vector<Outcome> together = RunTogether(*engine_, pair);
  for (size_t i = 0; i < pair.size(); ++i) {
    const Outcome alone = Run(pair[i]);
    ExpectSameKept(together[i], alone);
    EXPECT_EQ(together[i].logprobs, alone.logprobs);
  }
  EXPECT_NE(Positions(together[0].report.after_prompt),
            Positions(together[1].report.after_prompt));
}

// A released batch is padded to its longest prompt, and so is its budget.
TEST_F(IdentitiesTest, BudgetCountsRealPromptTokens) {
  engine_ = Make();
  const std::vector<Outcome> together =
      RunTogether(*engine_, {MakeRequest(300), MakeRequest(20)});
  EXPECT_EQ(together[0].usage.cache_budget_tokens, 150U);
  EXPECT_EQ(together[1].usage.cache_budget_tokens, 10U);
  EXPECT_EQ(together[1].report.after_prompt[0][0].positions.size(), 10U);
  EXPECT_EQ(together[1].report.at_end[0][0].positions.size(), 10U);
}

// A pool that holds the budget of a long sequence, and not the sequence.
TEST_F(IdentitiesTest, EvictionNeedsTheBudgetsMemoryAlone) {
  Request r = MakeRequest(300);
  r.stopping.max_new_tokens = 100;
  r.cache.tokens = 40;
  engine_ = Make();
  const Outcome roomy = Run(r);
  // ceil((40 + 1) / 16) = 3 pages a layer, of K and V in f32 with a position
  // and a score: under 16 x 2 x (2 x 16 x 4 + 64) bytes.
  engine_ = Make(uint64_t{kLayers} * 3 * 16 * kKvHeads * (2 * 16 * 4 + 64));
  const Outcome tight = Run(r);
  ExpectSameKept(roomy, tight);
  EXPECT_EQ(roomy.logprobs, tight.logprobs);
  const engine::EngineStats stats = engine_->Stats();
  EXPECT_EQ(stats.pages_free, stats.pages_total);

  r.cache.policy = CachePolicy::kFull;
  const Outcome full = RunTogether(*engine_, {r}).front();
  EXPECT_EQ(full.status.code(), absl::StatusCode::kFailedPrecondition)
      << full.status;
}

}  // namespace
}  // namespace kf::testing
