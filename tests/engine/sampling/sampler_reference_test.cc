// The sampler against a plain one that sorts the whole row and exponentiates
// with the library: the same token in every draw, at a vocabulary's size.
#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <string>
#include <vector>

#include "engine/sampling/sampler.h"
#include "gtest/gtest.h"
#include "kernels/core/noise.h"
#include "tests/engine/sampling/choose.h"

namespace kf::engine {
namespace {

constexpr size_t kRowLength = 3001;  // no multiple of any vector or block

struct Weighted {
  TokenId id;
  double weight;
  double surprise;
};

double WeightOf(const std::vector<Weighted>& tokens) {
  double sum = 0.0;
  for (const Weighted& t : tokens) sum += t.weight;
  return sum;
}

// The first of them that hold `mass`.
void KeepFirst(std::vector<Weighted>& tokens, double mass) {
  const double goal = mass * WeightOf(tokens);
  size_t kept = 0;
  double sum = 0.0;
  do {
    sum += tokens[kept++].weight;
  } while (kept < tokens.size() && sum < goal);
  tokens.resize(kept);
}

// docs/sampling.md, steps 5 to 10.
TokenId PlainSample(const std::vector<float>& logits,
                    const SamplingParams& p,
                    uint64_t seed,
                    uint32_t step) {
  const double top = static_cast<double>(*std::ranges::max_element(logits));
  std::vector<Weighted> tokens;
  for (size_t i = 0; i < logits.size(); ++i) {
    const double x = (static_cast<double>(logits[i]) - top) / p.temperature;
    tokens.push_back({static_cast<TokenId>(i), std::exp(x), 0.0});
  }
  const auto more_probable = [&](const Weighted& a, const Weighted& b) {
    const float x = logits[static_cast<size_t>(a.id)];
    const float y = logits[static_cast<size_t>(b.id)];
    return x != y ? x > y : a.id < b.id;
  };
  if (p.top_k > 0 && p.top_k < tokens.size()) {
    std::ranges::sort(tokens, more_probable);
    tokens.resize(p.top_k);
    std::ranges::sort(tokens, {}, &Weighted::id);
  }
  if (p.typical_p > 0.0) {
    const double total = WeightOf(tokens);
    double entropy = 0.0;
    for (const Weighted& t : tokens) {
      const double share = t.weight / total;
      if (share > 0.0) entropy -= share * std::log(share);
    }
    for (Weighted& t : tokens) {
      t.surprise = std::abs(-std::log(t.weight / total) - entropy);
    }
    std::ranges::stable_sort(tokens, {}, &Weighted::surprise);
    KeepFirst(tokens, p.typical_p);
  }
  if (p.top_p > 0.0) {
    std::ranges::sort(tokens, more_probable);
    KeepFirst(tokens, p.top_p);
    std::ranges::reverse(tokens);
  }
  double largest = 0.0;
  for (const Weighted& t : tokens) largest = std::max(largest, t.weight);
  std::erase_if(
      tokens, [&](const Weighted& t) { return t.weight < p.min_p * largest; });
  const Philox4 r =
      Philox4x32(step, 0, 0, 0x5A3D1E01U, static_cast<uint32_t>(seed),
                 static_cast<uint32_t>(seed >> 32));
  const double u =
      static_cast<double>(((uint64_t{r.word[0]} << 32) | r.word[1]) >> 11) *
      0x1p-53;
  const double point = u * WeightOf(tokens);
  double sum = 0.0;
  for (const Weighted& t : tokens) {
    sum += t.weight;
    if (point < sum) return t.id;
  }
  ADD_FAILURE() << "nothing drawn";
  return -1;
}

// Sums of uniforms: bell-shaped, with as many ties as `steps` makes.
std::vector<float> RandomRow(uint32_t seed, float width, float steps) {
  std::vector<float> logits;
  for (uint32_t i = 0; i < kRowLength; ++i) {
    float sum = 0.0F;
    for (uint32_t j = 0; j < 4; ++j) {
      sum += UnitInterval(MixBits(MixBits(seed * 4 + j) + i));
    }
    logits.push_back(std::round((sum - 2.0F) * width * steps) / steps);
  }
  return logits;
}

struct PlainCase {
  std::string name;
  SamplingParams params;
};
void PrintTo(const PlainCase& c, std::ostream* os) { *os << c.name; }

class PlainTest : public testing::TestWithParam<PlainCase> {};

TEST_P(PlainTest, TheSameTokens) {
  const SamplingParams& params = GetParam().params;
  Sampler sampler(kRowLength);
  for (uint32_t seed = 0; seed < 60; ++seed) {
    // From nearly flat to very steep, with and without ties.
    const float width = std::exp2(static_cast<float>(seed % 6)) / 2.0F;
    const std::vector<float> logits =
        RandomRow(seed, width, seed % 2 == 0 ? 4.0F : 4096.0F);
    EXPECT_EQ(
        Choose(sampler,
               {.logits = logits, .params = &params, .seed = 5, .step = seed}),
        PlainSample(logits, params, 5, seed))
        << "row " << seed;
  }
}

INSTANTIATE_TEST_SUITE_P(
    All,
    PlainTest,
    testing::Values(
        PlainCase{"Plain", {.temperature = 0.7}},
        PlainCase{"Cold", {.temperature = 0.01}},
        PlainCase{"Hot", {.temperature = 1e4}},
        PlainCase{"TopK", {.temperature = 0.8, .top_k = 40}},
        PlainCase{"TopKOne", {.temperature = 0.8, .top_k = 1}},
        PlainCase{"TopKMost", {.temperature = 9.0, .top_k = 2990}},
        PlainCase{"TopP", {.temperature = 0.7, .top_p = 0.9}},
        PlainCase{"TopPSmall", {.temperature = 2.0, .top_p = 0.01}},
        PlainCase{"TopPLarge", {.temperature = 1.0, .top_p = 0.9999999}},
        PlainCase{"MinP", {.temperature = 1.0, .min_p = 0.05}},
        PlainCase{"MinPTiny", {.temperature = 0.1, .min_p = 1e-300}},
        PlainCase{"Typical", {.temperature = 1.0, .typical_p = 0.2}},
        PlainCase{"TypicalMost", {.temperature = 0.5, .typical_p = 0.95}},
        PlainCase{"TypicalLarge", {.temperature = 1.0, .typical_p = 0.999999}},
        PlainCase{"All",
                  {.temperature = 1.3,
                   .top_k = 500,
                   .top_p = 0.8,
                   .min_p = 0.01,
                   .typical_p = 0.9}}),
    [](const auto& test) { return test.param.name; });

TEST(LogitRowTest, ExponentialsAreAccurate) {
  std::vector<float> x;
  for (int i = 0; i <= 9001; ++i) x.push_back(static_cast<float>(i) * -0.01F);
  std::vector<float> got(x.size());
  for (const double scale : {1.0, 1.0 / 0.7, 1e-3}) {
    Exponentials(x, 0.0F, scale, got);
    double sum = 0.0;
    for (size_t i = 0; i < x.size(); ++i) {
      const double exponent = static_cast<double>(x[i]) * scale;
      const double want = exponent < -86.0 ? 0.0 : std::exp(exponent);
      ASSERT_NEAR(static_cast<double>(got[i]), want,
                  2e-7 * (1.0 - exponent) * want)
          << x[i];
      sum += want;
    }
    EXPECT_NEAR(Sum(got), sum, 1e-6 * sum);
  }
  EXPECT_EQ(got[0], 1.0F);
  EXPECT_NEAR(SumOfExponentials(x, 0.0F), 1.0 / (1.0 - std::exp(-0.01)), 1e-5);
}

TEST(LogitRowTest, NoScaleIsTooSmallOrTooLarge) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  const std::vector<float> x = {0.0F, -1e-45F, -1.0F, -3e38F, -kInfinity};
  std::vector<float> got(x.size());
  for (const double scale : {1e76, 1e300}) {
    Exponentials(x, 0.0F, scale, got);
    EXPECT_EQ(got, (std::vector<float>{1.0F, 0.0F, 0.0F, 0.0F, 0.0F})) << scale;
  }
  for (const double scale : {5e-324, 1e-300, 1e-60}) {
    Exponentials(x, 0.0F, scale, got);
    EXPECT_EQ(got, (std::vector<float>{1.0F, 1.0F, 1.0F, 1.0F, 0.0F})) << scale;
  }
}

TEST(LogitRowTest, SelectsRanksAndFindsAsASortDoes) {
  for (uint32_t seed = 0; seed < 8; ++seed) {
    std::vector<float> logits = RandomRow(seed, 4.0F, 8.0F);
    // The worst case of a selection that cuts as it goes.
    if (seed >= 6) std::ranges::sort(logits);
    std::vector<TokenId> order(logits.size());
    std::iota(order.begin(), order.end(), 0);
    std::ranges::stable_sort(order, [&](TokenId a, TokenId b) {
      return logits[static_cast<size_t>(a)] > logits[static_cast<size_t>(b)];
    });
    EXPECT_EQ(ScanLogits(logits).best, order[0]);
    EXPECT_EQ(ScanLogits(logits).largest,
              logits[static_cast<size_t>(order[0])]);
    for (size_t rank = 0; rank < order.size(); rank += 97) {
      EXPECT_EQ(CountBetter(logits, order[rank]), rank);
    }
    for (const size_t count : {0UL, 1UL, 5UL, 64UL, 1500UL, 3000UL, 9999UL}) {
      std::vector<TokenId> want(
          order.begin(), order.begin() + static_cast<std::ptrdiff_t>(
                                             std::min(count, order.size())));
      std::vector<TokenId> got = SelectLargest(logits, count);
      std::ranges::sort(want);
      std::ranges::sort(got);
      EXPECT_EQ(got, want) << count;
    }
  }
}

// Every place, in whole vectors and in what is left of the row.
TEST(LogitRowTest, OneBadLogitSpoilsTheRowWhereverItIs) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  for (const size_t size : {1UL, 3UL, 16UL, 37UL, 600UL}) {
    for (size_t i = 0; i < size; ++i) {
      std::vector<float> row(size, 1.0F);
      row[i] = 2.0F;
      EXPECT_EQ(ScanLogits(row).best, static_cast<TokenId>(i));
      row[i] = -kInfinity;
      EXPECT_EQ(ScanLogits(row).bad, size == 1);
      for (const float bad : {kInfinity, std::nanf(""), -std::nanf("")}) {
        row[i] = bad;
        EXPECT_TRUE(ScanLogits(row).bad);
      }
    }
  }
}

}  // namespace
}  // namespace kf::engine
