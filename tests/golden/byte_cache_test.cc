// An 8-bit cache end to end: a request's answer depends on the request alone,
// and is near that of a bf16 cache.
#include <algorithm>
#include <cmath>
#include <cstdlib>

#include "gtest/gtest.h"
#include "tests/golden/identity_rig.h"

namespace kf::testing {
namespace {

using engine::CachePolicy;
using engine::Request;

class ByteCacheTest : public IdentityRig {
 protected:
  EngineSetup ByteSetup() const {
    EngineSetup setup = BackendSetup();
    setup.cache_dtype = DType::kI8;
    return setup;
  }

  // Every policy, scope and kind of positions.
  static std::vector<Request> Requests(int32_t n) {
    std::vector<Request> requests = Variants(n);
    for (const CachePolicy policy : {CachePolicy::kFull, CachePolicy::kWindow,
                                     CachePolicy::kH2O, CachePolicy::kQuest}) {
      requests.push_back(MakeRequest(n));
      requests.back().cache.policy = policy;
    }
    requests.back().cache.full_layers = 1;
    requests.push_back(MakeRequest(n));
    requests.back().cache.positions = engine::CachePositions::kCache;
    return requests;
  }
};

INSTANTIATE_TEST_SUITE_P(Backends,
                         ByteCacheTest,
                         ::testing::ValuesIn(BackendNames()),
                         NameOfBackend);

// In every scope: MODEL rounds a layer when it is complete, and cuts later.
TEST_P(ByteCacheTest, WholeBudgetIsFullBitForBit) {
  engine_ = MakeEngine(ByteSetup());
  Request full = MakeRequest(100);
  full.cache.policy = CachePolicy::kFull;
  const Outcome want = Run(full);
  for (Request request : Variants(100)) {
    request.cache.ratio = 1.0;
    request.cache.basis = engine::BudgetBasis::kTotal;
    const Outcome got = Run(request);
    ExpectSameKept(got, want);
    EXPECT_EQ(got.logprobs, want.logprobs);
  }
}

TEST_P(ByteCacheTest, BatchAndSlicesChangeNoBit) {
  ExpectBatchAndSlicesChangeNoBit([this] { return ByteSetup(); },
                                  Requests(140));
}

// The first token comes of the prompt, which is not rounded; the others differ,
// by little: most where another token leaves, and a token that differs ends the
// comparison.
TEST_P(ByteCacheTest, LogprobsAreNearThoseOfBf16) {
  const std::vector<Request> requests = Requests(140);
  EngineSetup setup = BackendSetup();
  setup.cache_dtype = DType::kBF16;
  engine_ = MakeEngine(std::move(setup));
  const std::vector<Outcome> bf16 = RunAll(requests);
  engine_ = MakeEngine(ByteSetup());
  const std::vector<Outcome> bytes = RunAll(requests);
  double most = 0.0;
  double sum = 0.0;
  size_t compared = 0;
  for (size_t i = 0; i < requests.size(); ++i) {
    EXPECT_EQ(bytes[i].tokens[0], bf16[i].tokens[0]);
    EXPECT_EQ(bytes[i].logprobs[0], bf16[i].logprobs[0]);
    EXPECT_EQ(Positions(bytes[i].report.after_prompt),
              Positions(bf16[i].report.after_prompt));
    for (size_t t = 1; t < bytes[i].tokens.size(); ++t) {
      if (bytes[i].tokens[t] != bf16[i].tokens[t]) break;
      ++compared;
      const double off = std::abs(bytes[i].logprobs[t] - bf16[i].logprobs[t]);
      most = std::max(most, off);
      sum += off;
    }
  }
  ASSERT_GT(compared, 100U);
  const double mean = sum / static_cast<double>(compared);
  EXPECT_LT(most, 0.2);
  EXPECT_LT(mean, 0.03);
  EXPECT_GT(mean, 0.001) << "8 bits are not free";
}

}  // namespace
}  // namespace kf::testing
