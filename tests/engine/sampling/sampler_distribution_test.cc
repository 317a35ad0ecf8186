// Draws against the exact distribution, worked out from each filter's
// definition with no sorting and no shared code. Seeds are fixed: the outcome
// is the same on every run.
#include <cmath>
#include <functional>
#include <string>
#include <vector>

#include "engine/sampling/sampler.h"
#include "gtest/gtest.h"
#include "tests/engine/sampling/choose.h"

namespace kf::engine {
namespace {

using Distribution = std::vector<double>;

Distribution Normalise(Distribution p) {
  double sum = 0.0;
  for (const double x : p) sum += x;
  for (double& x : p) x /= sum;
  return p;
}

// Keeps i if the tokens strictly before it hold less than `mass`.
Distribution KeepPrefix(const Distribution& p,
                        double mass,
                        const std::function<bool(size_t, size_t)>& before) {
  Distribution kept(p.size(), 0.0);
  for (size_t i = 0; i < p.size(); ++i) {
    if (p[i] == 0.0) continue;
    double ahead = 0.0;
    for (size_t j = 0; j < p.size(); ++j) {
      if (p[j] > 0.0 && before(j, i)) ahead += p[j];
    }
    if (ahead < mass) kept[i] = p[i];
  }
  return Normalise(kept);
}

// Of probabilities, ties to the smaller id.
std::function<bool(size_t, size_t)> MoreProbable(const Distribution& p) {
  return [&p](size_t a, size_t b) {
    return p[a] > p[b] || (p[a] == p[b] && a < b);
  };
}

Distribution Exact(const std::vector<float>& logits, const SamplingParams& s) {
  Distribution p;
  for (const float x : logits)
    p.push_back(std::exp(static_cast<double>(x) / s.temperature));
  p = Normalise(p);
  if (s.top_k > 0) {
    Distribution kept(p.size(), 0.0);
    for (size_t i = 0; i < p.size(); ++i) {
      uint32_t better = 0;
      for (size_t j = 0; j < p.size(); ++j) {
        if (MoreProbable(p)(j, i)) ++better;
      }
      if (better < s.top_k) kept[i] = p[i];
    }
    p = Normalise(kept);
  }
  if (s.typical_p > 0.0) {
    double entropy = 0.0;
    for (const double x : p) entropy -= x > 0.0 ? x * std::log(x) : 0.0;
    const auto distance = [&](size_t i) {
      return std::abs(-std::log(p[i]) - entropy);
    };
    p = KeepPrefix(p, s.typical_p, [&](size_t a, size_t b) {
      return distance(a) < distance(b);
    });
  }
  if (s.top_p > 0.0) p = KeepPrefix(p, s.top_p, MoreProbable(p));
  if (s.min_p > 0.0) {
    double largest = 0.0;
    for (const double x : p) largest = std::max(largest, x);
    for (double& x : p) x = x < s.min_p * largest ? 0.0 : x;
    p = Normalise(p);
  }
  return p;
}

struct DistributionCase {
  std::string name;
  SamplingParams params;
  size_t kept = 0;  // tokens that can be drawn: the filter does bite
};

void PrintTo(const DistributionCase& c, std::ostream* os) { *os << c.name; }

class DistributionTest : public testing::TestWithParam<DistributionCase> {};

TEST_P(DistributionTest, DrawsMatch) {
  const SamplingParams& params = GetParam().params;
  const std::vector<float> logits = {1.3F, -0.2F, 2.1F, 0.4F, 1.1F,  -2.0F,
                                     0.9F, 1.9F,  0.0F, 1.2F, -0.7F, 0.6F};
  const Distribution want = Exact(logits, params);
  size_t kept = 0;
  for (const double p : want) kept += p > 0.0 ? 1 : 0;
  ASSERT_EQ(kept, GetParam().kept);

  Sampler sampler(static_cast<int32_t>(logits.size()));
  constexpr int kDraws = 40000;
  std::vector<int> seen(logits.size(), 0);
  for (uint32_t step = 0; step < kDraws; ++step) {
    const TokenId id =
        Choose(sampler,
               {.logits = logits, .params = &params, .seed = 11, .step = step});
    ++seen[static_cast<size_t>(id)];
  }
  double chi_square = 0.0;
  for (size_t i = 0; i < want.size(); ++i) {
    if (want[i] == 0.0) {
      EXPECT_EQ(seen[i], 0) << "token " << i;
      continue;
    }
    const double expected = want[i] * kDraws;
    chi_square += (seen[i] - expected) * (seen[i] - expected) / expected;
  }
  // 11 degrees of freedom at most: above 31 one time in a thousand.
  EXPECT_LT(chi_square, 31.0);
}

INSTANTIATE_TEST_SUITE_P(
    All,
    DistributionTest,
    testing::Values(
        DistributionCase{"Plain", {.temperature = 1.0}, 12},
        DistributionCase{"Cool", {.temperature = 0.6}, 12},
        DistributionCase{"Hot", {.temperature = 3.0}, 12},
        DistributionCase{"TopK", {.temperature = 1.0, .top_k = 5}, 5},
        DistributionCase{"TopP", {.temperature = 1.0, .top_p = 0.7}, 5},
        DistributionCase{"MinP", {.temperature = 1.0, .min_p = 0.3}, 6},
        DistributionCase{"Typical", {.temperature = 1.0, .typical_p = 0.5}, 5},
        DistributionCase{
            "TopKThenTopP", {.temperature = 1.0, .top_k = 6, .top_p = 0.6}, 3},
        DistributionCase{"TypicalThenTopP",
                         {.temperature = 1.2, .top_p = 0.8, .typical_p = 0.7},
                         5},
        DistributionCase{"AllFour",
                         {.temperature = 1.5,
                          .top_k = 10,
                          .top_p = 0.9,
                          .min_p = 0.5,
                          .typical_p = 0.9},
                         5}),
    [](const auto& test) { return test.param.name; });

}  // namespace
}  // namespace kf::engine
