// Greedy choice, adjustments and edge values of the sampler.
#include "engine/sampling/sampler.h"

#include <cmath>
#include <limits>
#include <numeric>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/engine/sampling/choose.h"

namespace kf::engine {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();

struct GreedyCase {
  std::string name;
  std::vector<float> logits;
  SamplingParams params;
  std::vector<TokenId> prompt;
  std::vector<TokenId> generated;
  std::vector<TokenId> forbidden;
  TokenId want = 0;
};

void PrintTo(const GreedyCase& c, std::ostream* os) { *os << c.name; }

class GreedyTest : public testing::TestWithParam<GreedyCase> {};

TEST_P(GreedyTest, Chooses) {
  const GreedyCase& c = GetParam();
  TokenHistory history;
  history.AddPrompt(c.prompt);
  for (const TokenId id : c.generated) history.AddGenerated(id);
  Sampler sampler(static_cast<int32_t>(c.logits.size()));
  EXPECT_EQ(Choose(sampler, {.logits = c.logits,
                             .params = &c.params,
                             .history = &history,
                             .forbidden = c.forbidden}),
            c.want);
}

const SamplingParams kPlain;

SamplingParams Bias(std::map<TokenId, double> bias) {
  SamplingParams p;
  p.logit_bias = std::move(bias);
  return p;
}
SamplingParams Penalties(double repetition, double presence, double frequency) {
  SamplingParams p;
  p.repetition_penalty = repetition;
  p.presence_penalty = presence;
  p.frequency_penalty = frequency;
  return p;
}

INSTANTIATE_TEST_SUITE_P(
    All,
    GreedyTest,
    testing::Values(
        GreedyCase{"Largest", {1, 3, 2}, kPlain, {}, {}, {}, 1},
        GreedyCase{"TieGoesToSmallerId", {1, 3, 3, 3}, kPlain, {}, {}, {}, 1},
        GreedyCase{"OneToken", {-5}, kPlain, {}, {}, {}, 0},
        GreedyCase{"BiasLifts", {1, 3, 2}, Bias({{0, 2.5}}), {}, {}, {}, 0},
        GreedyCase{"BiasBans", {1, 3, 2}, Bias({{1, -1e9}}), {}, {}, {}, 2},
        GreedyCase{"BanBeatsPenalties",
                   {-5, 3e38F},
                   [] {
                     SamplingParams p = Penalties(0.001, -1e9, -1e9);
                     p.logit_bias = {{1, -1e9}};
                     return p;
                   }(),
                   {},
                   {1, 1},
                   {},
                   0},
        GreedyCase{"AllBannedIsIgnored",
                   {1, 3, 2},
                   Bias({{0, -1e9}, {1, -1e9}, {2, -1e9}}),
                   {},
                   {},
                   {},
                   1},
        GreedyCase{"MaskGivesWayBeforeBans",
                   {1, 3, 2},
                   Bias({{1, -1e9}}),
                   {},
                   {},
                   {0, 2},
                   2},
        GreedyCase{"BiasCannotRaiseMinusInf",
                   {1, -kInf, 2},
                   Bias({{1, 1e9}}),
                   {},
                   {},
                   {},
                   2},
        GreedyCase{"Forbidden", {1, 3, 2}, kPlain, {}, {}, {1}, 2},
        GreedyCase{
            "ForbiddenBeatsBias", {1, 3, 2}, Bias({{1, 1e9}}), {}, {}, {1}, 2},
        GreedyCase{"AllForbiddenIsIgnored", {1, 3}, kPlain, {}, {}, {0, 1}, 1},
        // 3 / 2 = 1.5 < 2.
        GreedyCase{"RepetitionDividesPositive",
                   {1, 3, 2},
                   Penalties(2, 0, 0),
                   {},
                   {1},
                   {},
                   2},
        // -1 x 4 < -3.
        GreedyCase{"RepetitionMultipliesNegative",
                   {-3, -1},
                   Penalties(4, 0, 0),
                   {},
                   {1},
                   {},
                   0},
        GreedyCase{"RepetitionCountsPrompt",
                   {1, 3, 2},
                   Penalties(2, 0, 0),
                   {1},
                   {},
                   {},
                   2},
        GreedyCase{"RepetitionIsOncePerToken",
                   {1, 3, 1.4F},
                   Penalties(2, 0, 0),
                   {1, 1},
                   {1, 1},
                   {},
                   1},
        GreedyCase{"RepetitionBelowOneFavours",
                   {1, 3, 2},
                   Penalties(0.5, 0, 0),
                   {},
                   {2},
                   {},
                   2},
        GreedyCase{"PresenceSubtracts",
                   {1, 3, 2},
                   Penalties(0, 1.5, 0),
                   {},
                   {1},
                   {},
                   2},
        GreedyCase{"PresenceIgnoresPrompt",
                   {1, 3, 2},
                   Penalties(0, 1.5, 0),
                   {1},
                   {},
                   {},
                   1},
        GreedyCase{"PresenceIsOncePerToken",
                   {1, 3, 1.6F},
                   Penalties(0, 1, 0),
                   {},
                   {1, 1, 1},
                   {},
                   1},
        GreedyCase{"FrequencyMultipliesCount",
                   {1, 3, 2},
                   Penalties(0, 0, 0.6),
                   {},
                   {1, 1},
                   {},
                   2},
        GreedyCase{
            "FrequencyOfOne", {1, 3, 2}, Penalties(0, 0, 0.6), {}, {1}, {}, 1},
        GreedyCase{"FrequencyIgnoresPrompt",
                   {1, 3, 2},
                   Penalties(0, 0, 0.6),
                   {1, 1, 1},
                   {},
                   {},
                   1},
        GreedyCase{"NegativePenaltiesFavour",
                   {1, 3, 2},
                   Penalties(0, -1, -1),
                   {},
                   {2},
                   {},
                   2},
        // Bias first: (3 - 4) x 2 = -2; penalty first would give -2.5.
        GreedyCase{"BiasComesBeforeRepetition",
                   {-2.2F, 3},
                   [] {
                     SamplingParams p = Penalties(2, 0, 0);
                     p.logit_bias = {{1, -4.0}};
                     return p;
                   }(),
                   {1},
                   {},
                   {},
                   1},
        GreedyCase{"HugePenaltiesStayFinite",
                   {1, 3e38F, 2},
                   Penalties(0.001, -1e9, -1e9),
                   {},
                   {1, 1},
                   {},
                   1}),
    [](const auto& test) { return test.param.name; });

// --- with a temperature ---

constexpr int32_t kVocabulary = 8;
const std::vector<float> kLogits = {0.5F, 2.0F, -1.0F, 1.9F,
                                    0.0F, 1.0F, -3.0F, 0.7F};

std::vector<int> Draw(const SamplingParams& params, int count) {
  Sampler sampler(kVocabulary);
  std::vector<int> seen(kVocabulary, 0);
  for (int step = 0; step < count; ++step) {
    const TokenId id = Choose(sampler, {.logits = kLogits,
                                        .params = &params,
                                        .seed = 7,
                                        .step = static_cast<uint32_t>(step)});
    ++seen[static_cast<size_t>(id)];
  }
  return seen;
}

TEST(SamplerEdgeTest, TinyTemperaturesAreGreedy) {
  for (const double t : {1e-3, 1e-30, 1e-300, 5e-324}) {
    EXPECT_EQ(Draw({.temperature = t}, 200)[1], 200) << t;
  }
}

TEST(SamplerEdgeTest, HugeTemperatureIsUniform) {
  for (const int count : Draw({.temperature = 1e308}, 16000)) {
    EXPECT_NEAR(count, 2000, 200);
  }
}

TEST(SamplerEdgeTest, ValuesThatTurnAFilterOff) {
  const std::vector<int> plain = Draw({.temperature = 1.0}, 500);
  EXPECT_EQ(Draw({.temperature = 1.0, .top_k = kVocabulary}, 500), plain);
  EXPECT_EQ(Draw({.temperature = 1.0, .top_k = 4294967295U}, 500), plain);
  EXPECT_EQ(Draw({.temperature = 1.0, .top_p = 1.0}, 500), plain);
  EXPECT_EQ(Draw({.temperature = 1.0, .typical_p = 1.0}, 500), plain);
  EXPECT_NE(Draw({.temperature = 1.0, .top_k = 3}, 500), plain);
}

TEST(SamplerEdgeTest, ValuesThatLeaveOneToken) {
  const SamplingParams cases[] = {{.temperature = 1.0, .top_k = 1},
                                  {.temperature = 1.0, .top_p = 1e-9},
                                  {.temperature = 1.0, .top_p = 5e-324},
                                  {.temperature = 1.0, .min_p = 1.0}};
  for (const SamplingParams& p : cases) EXPECT_EQ(Draw(p, 200)[1], 200);
  // Typical-p keeps the one whose surprise is nearest to the entropy, and a
  // tiny temperature leaves it the only one that has a weight at all.
  const std::vector<int> typical =
      Draw({.temperature = 1.0, .typical_p = 5e-324}, 200);
  EXPECT_THAT(typical, testing::Contains(200));
  EXPECT_EQ(Draw({.temperature = 1e-300, .typical_p = 5e-324}, 9)[1], 9);
}

TEST(SamplerEdgeTest, MinusInfinityIsNeverDrawn) {
  const std::vector<float> logits = {-kInf, 0.0F, -kInf, 0.0F};
  const SamplingParams params = {.temperature = 1e30};
  Sampler sampler(4);
  for (uint32_t step = 0; step < 200; ++step) {
    EXPECT_EQ(
        Choose(sampler, {.logits = logits, .params = &params, .step = step}) %
            2,
        1);
  }
}

// A huge temperature makes all logits alike, but not a ban.
TEST(SamplerEdgeTest, ABannedTokenIsNeverDrawn) {
  const SamplingParams params = {.temperature = 1e12,
                                 .logit_bias = {{1, -1e9}, {2, -1e9 + 1.0}}};
  const std::vector<int> seen = Draw(params, 4000);
  EXPECT_EQ(seen[1], 0);
  EXPECT_GT(seen[2], 0);
}

TEST(SamplerDeterminismTest, TokenDependsOnItsOwnInputsAlone) {
  const SamplingParams params = {.temperature = 1.0, .top_p = 0.9};
  const std::vector<float> other = {9, 8, 7, 6, 5, 4, 3, 2};
  Sampler alone(kVocabulary);
  Sampler shared(kVocabulary);
  for (uint32_t step = 0; step < 100; ++step) {
    const Sampler::Input input = {
        .logits = kLogits, .params = &params, .seed = 3, .step = step};
    Choose(shared, {.logits = other, .params = &params, .seed = step});
    EXPECT_EQ(Choose(shared, input), Choose(alone, input));
  }
}

// Every part of the counter and of the key matters.
TEST(SamplerDeterminismTest, SeedStepAndStreamDrawAnew) {
  const SamplingParams params = {.temperature = 1.0};
  const auto run = [&](uint64_t seed, uint32_t first_step, uint32_t stream) {
    Sampler sampler(kVocabulary);
    std::vector<TokenId> ids;
    for (uint32_t i = 0; i < 64; ++i) {
      ids.push_back(Choose(sampler, {.logits = kLogits,
                                     .params = &params,
                                     .seed = seed,
                                     .step = first_step + i,
                                     .stream = stream}));
    }
    return ids;
  };
  const std::vector<TokenId> base = run(1, 0, 0);
  EXPECT_EQ(run(1, 0, 0), base);
  EXPECT_NE(run(2, 0, 0), base);
  EXPECT_NE(run(1 + (uint64_t{1} << 32), 0, 0), base);
  EXPECT_NE(run(1, 64, 0), base);
  EXPECT_NE(run(1, 0, 1), base);
}

TEST(TokenHistoryTest, CopiesPartWhenTheyAdd) {
  TokenHistory first;
  const TokenId prompt[] = {3, 3, 5};
  first.AddPrompt(prompt);
  TokenHistory second = first;
  EXPECT_EQ(&second.counts(), &first.counts());
  second.AddGenerated(5);
  EXPECT_EQ(first.counts().at(5).generated, 0U);
  EXPECT_EQ(second.counts().at(5).generated, 1U);
  EXPECT_EQ(second.counts().at(3).prompt, 2U);
  // Alone again, it adds in place.
  const auto* counts = &first.counts();
  first.AddGenerated(7);
  EXPECT_EQ(&first.counts(), counts);
}

}  // namespace
}  // namespace kf::engine
