// What every pass of every layer leaves behind, for random policies and
// lengths on every backend; and that watching changes no bit.
#include <random>

#include "gtest/gtest.h"
#include "tests/golden/identity_rig.h"
#include "tests/golden/pass_watch.h"
#include "tests/golden/random_policy.h"

namespace kf::testing {
namespace {

using engine::CachePolicy;
using engine::Request;

class PassesTest : public IdentityRig {
 protected:
  static constexpr int kRequests = 60;

  static std::vector<Request> RandomRequests(uint32_t seed) {
    std::mt19937 random(seed);
    std::vector<Request> requests;
    constexpr CachePolicy kPolicies[] = {
        CachePolicy::kKeyformer, CachePolicy::kH2O, CachePolicy::kKeyformer,
        CachePolicy::kWindow, CachePolicy::kQuest};
    for (uint32_t i = 0; i < kRequests; ++i) {
      const int32_t n = Draw(random, 1, i % 4 == 0 ? 300 : 70);
      Request& r = requests.emplace_back(MakeRequest(n, i));
      r.stopping.max_new_tokens = static_cast<uint32_t>(Draw(random, 1, kNew));
      r.cache = DrawCacheOptions(random, kPolicies[i % 5], kLayers);
    }
    return requests;
  }
};

INSTANTIATE_TEST_SUITE_P(Backends,
                         PassesTest,
                         ::testing::ValuesIn(BackendNames()),
                         NameOfBackend);

TEST_P(PassesTest, CountsPositionsWindowsAndColumns) {
  PassCounts counts;
  const std::vector<Request> requests = RandomRequests(11);
  EngineSetup setup = BackendSetup();
  setup.backend = std::make_unique<PassWatch>(std::move(setup.backend), counts);
  engine_ = MakeEngine(std::move(setup));
  const std::vector<Outcome> watched = RunAll(requests);
  engine_ = MakeEngine(BackendSetup());
  const std::vector<Outcome> unwatched = RunAll(requests);
  for (size_t i = 0; i < requests.size(); ++i) {
    SCOPED_TRACE(i);
    ExpectSameBits(watched[i], unwatched[i]);
  }
  EXPECT_EQ(counts.violations, std::vector<std::string>());
  EXPECT_GE(counts.prompts, kRequests / 2);
  EXPECT_GE(counts.columns, 5000);
  EXPECT_GE(counts.evicted, 2000);
}

}  // namespace
}  // namespace kf::testing
