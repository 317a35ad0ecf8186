#include <cmath>
#include <limits>
#include <vector>

#include "engine/sampling/sampler.h"
#include "gtest/gtest.h"

namespace kf::engine {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

TokenLogprob Logprob(const std::vector<float>& logits,
                     TokenId id,
                     uint32_t top) {
  return LogprobOf(logits, ScanLogits(logits), id, top);
}

TEST(HasBadLogitsTest, Cases) {
  const auto bad = [](std::vector<float> x) { return HasBadLogits(x); };
  EXPECT_FALSE(bad({0.0F}));
  EXPECT_FALSE(bad({-kInf, 1.0F, -kInf}));
  EXPECT_FALSE(bad({3e38F, -3e38F}));
  EXPECT_TRUE(bad({1.0F, kNaN}));
  EXPECT_TRUE(bad({1.0F, -kNaN, 2.0F}));
  EXPECT_TRUE(bad({1.0F, kInf}));
  EXPECT_TRUE(bad({-kInf, -kInf}));
  EXPECT_TRUE(bad({}));
}

TEST(LogprobOfTest, ValuesAndRanks) {
  // Probabilities 1/10, 2/10, 3/10, 4/10.
  const std::vector<float> logits = {std::log(1.0F), std::log(2.0F),
                                     std::log(3.0F), std::log(4.0F)};
  const TokenLogprob got = Logprob(logits, 1, 3);
  EXPECT_EQ(got.id, 1);
  EXPECT_EQ(got.rank, 3U);
  EXPECT_NEAR(got.logprob, std::log(0.2), 1e-6);
  ASSERT_EQ(got.top.size(), 3U);
  for (size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(got.top[i].id, static_cast<TokenId>(3 - i));
    EXPECT_EQ(got.top[i].rank, i + 1);
    EXPECT_NEAR(got.top[i].logprob,
                std::log(0.4 - 0.1 * static_cast<double>(i)), 1e-6);
  }
}

TEST(LogprobOfTest, TiesGoToTheSmallerId) {
  const std::vector<float> logits = {1.0F, 2.0F, 2.0F, 1.0F};
  EXPECT_EQ(Logprob(logits, 2, 0).rank, 2U);
  EXPECT_EQ(Logprob(logits, 1, 0).rank, 1U);
  EXPECT_EQ(Logprob(logits, 3, 0).rank, 4U);
  const TokenLogprob got = Logprob(logits, 0, 4);
  std::vector<TokenId> ids;
  for (const TokenLogprob& t : got.top) ids.push_back(t.id);
  EXPECT_EQ(ids, (std::vector<TokenId>{1, 2, 0, 3}));
}

TEST(LogprobOfTest, TopIsCutToTheVocabulary) {
  EXPECT_EQ(Logprob(std::vector<float>{1.0F, 2.0F}, 0, 64).top.size(), 2U);
  EXPECT_TRUE(Logprob(std::vector<float>{1.0F, 2.0F}, 0, 0).top.empty());
}

TEST(LogprobOfTest, LargeLogitsDoNotOverflow) {
  const std::vector<float> logits = {3e38F, 3e38F, -3e38F, -kInf};
  EXPECT_NEAR(Logprob(logits, 0, 0).logprob, -std::log(2.0), 1e-12);
  EXPECT_EQ(Logprob(logits, 3, 0).logprob, -static_cast<double>(kInf));
  EXPECT_EQ(Logprob(logits, 3, 0).rank, 4U);
}

}  // namespace
}  // namespace kf::engine
