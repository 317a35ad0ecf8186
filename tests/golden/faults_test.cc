// The faults of the paper's released code that show only between requests or in
// memory: scores summed over a batch, a budget that counts padding, memory that
// is never freed. (Those that one sequence shows: golden_test's traps.)
#include "gtest/gtest.h"
#include "tests/golden/identity_rig.h"

namespace kf::testing {
namespace {

using engine::CachePolicy;
using engine::Request;

using FaultsTest = IdentityRig;

TEST_F(FaultsTest, BatchedRequestsDoNotShareScores) {
  engine_ = MakeEngine(BackendSetup());
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
TEST_F(FaultsTest, BudgetCountsRealPromptTokens) {
  engine_ = MakeEngine(BackendSetup());
  const std::vector<Outcome> together =
      RunTogether(*engine_, {MakeRequest(300), MakeRequest(20)});
  EXPECT_EQ(together[0].usage.cache_budget_tokens, 150U);
  EXPECT_EQ(together[1].usage.cache_budget_tokens, 10U);
  EXPECT_EQ(together[1].report.after_prompt[0][0].positions.size(), 10U);
  EXPECT_EQ(together[1].report.at_end[0][0].positions.size(), 10U);
}

// A pool that holds the budget of a long sequence, and not the sequence.
TEST_F(FaultsTest, EvictionNeedsTheBudgetsMemoryAlone) {
  Request r = MakeRequest(300);
  r.stopping.max_new_tokens = 100;
  r.cache.tokens = 40;
  engine_ = MakeEngine(BackendSetup());
  const Outcome roomy = Run(r);
  // ceil((40 + 1) / 16) = 3 pages a layer, of K and V in f32 with a position
  // and a score: under 16 x 2 x (2 x 16 x 4 + 64) bytes.
  EngineSetup setup = BackendSetup();
  setup.kv_pool_bytes =
      uint64_t{kLayers} * 3 * 16 * kKvHeads * (2 * 16 * 4 + 64);
  engine_ = MakeEngine(std::move(setup));
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
