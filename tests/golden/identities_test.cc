// What must hold of any model and prompt (docs/keyformer.md, Identities), on
// every backend, in every scope and with either score norm.
#include <algorithm>
#include <numeric>

#include "gtest/gtest.h"
#include "tests/golden/identity_rig.h"

namespace kf::testing {
namespace {

using engine::CachePolicy;
using engine::Request;

using IdentitiesTest = IdentityRig;

INSTANTIATE_TEST_SUITE_P(Backends,
                         IdentitiesTest,
                         ::testing::ValuesIn(BackendNames()),
                         NameOfBackend);

// `change` applied to every variant of a 100-token request.
template <typename Change>
std::vector<Request> Changed(std::vector<Request> variants, Change change) {
  for (Request& r : variants) change(r);
  return variants;
}

TEST_P(IdentitiesTest, WholeBudgetIsFullBitForBit) {
  engine_ = MakeEngine(BackendSetup());
  Request full = MakeRequest(100);
  full.cache.policy = CachePolicy::kFull;
  const Outcome want = Run(full);
  for (const Outcome& got : RunAll(Changed(Variants(100), [](Request& r) {
         r.cache.ratio = 1.0;
         r.cache.basis = engine::BudgetBasis::kTotal;
       }))) {
    ExpectSameKept(got, want);
    EXPECT_EQ(got.logprobs, want.logprobs);
    EXPECT_EQ(got.usage.evicted_tokens, 0U);
  }
}

TEST_P(IdentitiesTest, ConstantNoiseChangesNothing) {
  engine_ = MakeEngine(BackendSetup());
  const auto none = RunAll(Changed(
      Variants(100), [](Request& r) { r.cache.noise = NoiseKind::kNone; }));
  const auto constant = RunAll(Changed(
      Variants(100), [](Request& r) { r.cache.noise = NoiseKind::kConstant; }));
  for (size_t i = 0; i < none.size(); ++i) {
    ExpectSameKept(none[i], constant[i]);
    for (size_t layer = 0; layer < kLayers; ++layer) {
      for (size_t g = 0; g < kKvHeads; ++g) {
        const auto& x = none[i].report.at_end[layer][g].scores;
        const auto& y = constant[i].report.at_end[layer][g].scores;
        ASSERT_EQ(x.size(), y.size());
        for (size_t at = 0; at < x.size(); ++at) {
          EXPECT_NEAR(x[at], y[at], 1e-5F * x[at]);
        }
      }
    }
  }
}

TEST_P(IdentitiesTest, KeyformerWithoutNoiseAndTemperatureIsH2O) {
  engine_ = MakeEngine(BackendSetup());
  const auto keyformer = RunAll(Changed(Variants(100), [](Request& r) {
    r.cache.noise = NoiseKind::kNone;
    r.cache.tau_end = 1.0;
  }));
  const auto h2o = RunAll(Changed(
      Variants(100), [](Request& r) { r.cache.policy = CachePolicy::kH2O; }));
  for (size_t i = 0; i < h2o.size(); ++i) ExpectSameBits(keyformer[i], h2o[i]);
}

// The noise does bite: else the identities above would say little.
TEST_P(IdentitiesTest, NoiseAndItsSeedMatter) {
  engine_ = MakeEngine(BackendSetup());
  const auto one = RunAll(Variants(100));
  const auto again = RunAll(Variants(100));
  const auto other = RunAll(
      Changed(Variants(100), [](Request& r) { r.cache.noise_seed = 18; }));
  for (size_t i = 0; i < one.size(); ++i) {
    ExpectSameBits(one[i], again[i]);
    EXPECT_NE(Positions(one[i].report.at_end),
              Positions(other[i].report.at_end));
  }
}

// Alone, among others, and however the prompt is cut into slices.
TEST_P(IdentitiesTest, BatchAndSlicesChangeNoBit) {
  ExpectBatchAndSlicesChangeNoBit([this] { return BackendSetup(); },
                                  Variants(140));
}

TEST_P(IdentitiesTest, LargeBudgetEvictsNothing) {
  engine_ = MakeEngine(BackendSetup());
  for (const Outcome& o : RunAll(Changed(
           Variants(100), [](Request& r) { r.cache.tokens = 100 + kNew; }))) {
    EXPECT_EQ(o.usage.evicted_tokens, 0U);
    for (const auto& layer : o.report.at_end) {
      for (const HeldTokens& head : layer) {
        EXPECT_EQ(head.positions.size(), 100U + kNew - 1);
        // Every row's softmax adds up to 1 in each of the H/G heads of a group.
        const double sum =
            std::accumulate(head.scores.begin(), head.scores.end(), 0.0);
        EXPECT_NEAR(sum, (100 + kNew - 1) * kGroup, 1e-2);
      }
    }
  }
}

void ExpectAllHeadsHold(const engine::CacheState& state,
                        const std::vector<int32_t>& positions) {
  for (const auto& layer : state) {
    for (const HeldTokens& head : layer) {
      EXPECT_EQ(head.positions, positions);
    }
  }
}

std::vector<int32_t> Range(int32_t first, int32_t end) {
  std::vector<int32_t> range(static_cast<size_t>(end - first));
  std::iota(range.begin(), range.end(), first);
  return range;
}

TEST_P(IdentitiesTest, WindowOfTheBudgetKeepsTheNewest) {
  engine_ = MakeEngine(BackendSetup());
  std::vector<Request> requests = Changed(Variants(100), [](Request& r) {
    r.cache.tokens = 20;
    r.cache.recent_tokens = 20;
  });
  Request& window = requests.emplace_back(MakeRequest(100));
  window.cache.policy = CachePolicy::kWindow;
  window.cache.tokens = 20;
  window.cache.sinks = 0;
  const std::vector<Outcome> outcomes = RunAll(requests);
  for (const Outcome& o : outcomes) {
    ExpectAllHeadsHold(o.report.after_prompt, Range(80, 100));
    ExpectAllHeadsHold(o.report.at_end, Range(80 + kNew - 1, 100 + kNew - 1));
    EXPECT_EQ(o.logprobs, outcomes.back().logprobs);
  }
}

TEST_P(IdentitiesTest, WindowKeepsItsSinksAndTheNewest) {
  engine_ = MakeEngine(BackendSetup());
  for (const int32_t n : {3, 100}) {
    for (const int32_t sinks : {1, 4, 500}) {
      Request r = MakeRequest(n);
      r.cache.policy = CachePolicy::kWindow;
      r.cache.tokens = 20;
      r.cache.sinks = static_cast<uint32_t>(sinks);
      const Outcome o = Run(r);
      const auto kept = [&](int32_t seen) {
        const int32_t first = std::min(sinks, 19);
        std::vector<int32_t> all = Range(0, seen);
        if (seen > 20) all.erase(all.begin() + first, all.end() - 20 + first);
        return all;
      };
      ExpectAllHeadsHold(o.report.after_prompt, kept(n));
      ExpectAllHeadsHold(o.report.at_end, kept(n + kNew - 1));
    }
  }
}

TEST_P(IdentitiesTest, QuestThatReadsAllIsFullBitForBit) {
  engine_ = MakeEngine(BackendSetup());
  Request full = MakeRequest(100);
  full.cache.policy = CachePolicy::kFull;
  Request quest = full;
  quest.cache.policy = CachePolicy::kQuest;
  quest.cache.tokens = 100 + kNew;
  quest.cache.full_layers = 0;
  Request few = quest;
  few.cache.tokens = 16;
  const Outcome want = Run(full);
  const Outcome all = Run(quest);
  ExpectSameKept(all, want);
  EXPECT_EQ(all.logprobs, want.logprobs);
  const Outcome some = Run(few);
  EXPECT_EQ(Positions(some.report.at_end), Positions(want.report.at_end));
  EXPECT_NE(some.logprobs, want.logprobs);
}

TEST_P(IdentitiesTest, EachHeadHoldsItsBudgetWithTheNewest) {
  engine_ = MakeEngine(BackendSetup());
  std::vector<Request> requests;
  for (const int32_t n : {1, 5, 16, 33, 100}) {
    for (const int32_t k : {1, 7, 16, 40}) {
      for (Request& r : Variants(n)) {
        r.cache.tokens = static_cast<uint32_t>(k);
        r.cache.recent_tokens = static_cast<uint32_t>(k / 3);
        requests.push_back(std::move(r));
      }
    }
  }
  const std::vector<Outcome> outcomes = RunAll(requests);
  for (size_t i = 0; i < requests.size(); ++i) {
    const auto k = static_cast<int32_t>(*requests[i].cache.tokens);
    const int32_t w = k / 3;
    const auto seen =
        static_cast<int32_t>(requests[i].prompt.size()) + kNew - 1;
    const auto held = static_cast<size_t>(std::min(k, seen));
    EXPECT_EQ(outcomes[i].usage.cache_budget_tokens, static_cast<uint32_t>(k));
    EXPECT_EQ(outcomes[i].usage.evicted_tokens,
              static_cast<uint32_t>(seen) - static_cast<uint32_t>(held));
    for (const auto& layer : outcomes[i].report.at_end) {
      for (const HeldTokens& head : layer) {
        const std::vector<int32_t>& p = head.positions;
        ASSERT_EQ(p.size(), held);
        EXPECT_TRUE(std::adjacent_find(p.begin(), p.end(),
                                       std::greater_equal<>()) == p.end());
        EXPECT_GE(p.front(), 0);
        for (int32_t back = 0; back < std::min(w, seen); ++back) {
          EXPECT_EQ(p[held - 1 - static_cast<size_t>(back)], seen - 1 - back);
        }
      }
    }
  }
}

}  // namespace
}  // namespace kf::testing
