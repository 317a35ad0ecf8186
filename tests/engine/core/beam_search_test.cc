// The search alone, against the oracle's rule written out plainly.
#include "engine/beam_search.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <tuple>
#include <utility>

#include "kernels/core/noise.h"

namespace kf::engine {
namespace {

using Tokens = std::vector<TokenId>;

constexpr int32_t kVocabulary = 40;
constexpr TokenId kEnd = 7;

// A model: logits are a function of the text so far. `steps` values in all, so
// that equal ones are common.
struct Model {
  uint32_t seed = 0;
  uint32_t steps = 12;
  float end_bonus = 0.0F;

  std::vector<float> operator()(const Tokens& text) const {
    uint32_t state = MixBits(seed);
    for (const TokenId token : text) {
      state = MixBits(state ^ static_cast<uint32_t>(token + 1));
    }
    std::vector<float> logits(kVocabulary);
    for (uint32_t i = 0; i < kVocabulary; ++i) {
      logits[i] = 0.37F * static_cast<float>(MixBits(state + i) % steps);
    }
    logits[kEnd] += end_bonus;
    return logits;
  }
};

std::vector<double> LogSoftmax(const std::vector<float>& logits) {
  const auto largest =
      static_cast<double>(*std::max_element(logits.begin(), logits.end()));
  double sum = 0.0;
  for (const float x : logits) {
    sum += std::exp(static_cast<double>(x) - largest);
  }
  std::vector<double> result;
  result.reserve(logits.size());
  for (const float x : logits) {
    result.push_back((static_cast<double>(x) - largest) - std::log(sum));
  }
  return result;
}

struct Options {
  BeamParams params;
  int32_t max_new_tokens = 0;
  Tokens end_ids;
};

// beam_search of keyformer_oracle.py, line by line.
std::vector<std::pair<double, Tokens>> Plain(const Model& model,
                                             const Options& setup) {
  struct Beam {
    double sum = 0.0;
    Tokens tokens;
  };
  const size_t width = setup.params.width;
  std::vector<Beam> live(1);
  std::vector<std::pair<double, Tokens>> done;
  const auto norm = [&](double total, size_t length) {
    return total / std::pow(static_cast<double>(std::max<size_t>(length, 1)),
                            setup.params.length_penalty);
  };
  const auto keep_best = [&] {
    std::stable_sort(
        done.begin(), done.end(),
        [](const auto& a, const auto& b) { return a.first > b.first; });
    if (done.size() > width) done.resize(width);
  };
  for (int32_t t = 0; t < setup.max_new_tokens; ++t) {
    std::vector<double> total;
    for (const Beam& beam : live) {
      for (const double logprob : LogSoftmax(model(beam.tokens))) {
        total.push_back(beam.sum + logprob);
      }
    }
    std::vector<size_t> flat(total.size());
    std::iota(flat.begin(), flat.end(), size_t{0});
    std::stable_sort(flat.begin(), flat.end(),
                     [&](size_t a, size_t b) { return total[a] > total[b]; });
    flat.resize(std::min(flat.size(), 2 * width));
    std::vector<Beam> survivors;
    for (size_t rank = 0; rank < flat.size(); ++rank) {
      const auto token = static_cast<TokenId>(flat[rank] % kVocabulary);
      Tokens tokens = live[flat[rank] / kVocabulary].tokens;
      tokens.push_back(token);
      if (std::count(setup.end_ids.begin(), setup.end_ids.end(), token) > 0) {
        if (rank < width) {
          done.emplace_back(norm(total[flat[rank]], tokens.size()), tokens);
        }
      } else if (survivors.size() < width) {
        survivors.push_back({total[flat[rank]], tokens});
      }
    }
    keep_best();
    live = survivors;
    if (done.size() == width &&
        (setup.params.early_stopping ||
         norm(live[0].sum, static_cast<size_t>(t) + 1) <= done.back().first)) {
      live.clear();
      break;
    }
  }
  for (const Beam& beam : live) {
    done.emplace_back(norm(beam.sum, beam.tokens.size()), beam.tokens);
  }
  keep_best();
  return done;
}

BeamSearch Search(const Model& model, const Options& setup) {
  BeamSearch search(setup.params, setup.max_new_tokens, setup.end_ids);
  std::vector<Tokens> texts(1);
  while (search.live() > 0) {
    std::vector<std::vector<BeamSearch::Continuation>> rows;
    for (size_t beam = 0; beam < search.live(); ++beam) {
      const std::vector<float> logits = model(texts[beam]);
      rows.push_back(search.Rank(beam, logits, ScanLogits(logits)));
    }
    search.Advance(rows);
    // Texts follow as caches do.
    std::vector<Tokens> next;
    for (size_t beam = 0; beam < search.live(); ++beam) {
      next.push_back(texts[search.parent(beam)]);
      next.back().push_back(search.token(beam));
    }
    texts = std::move(next);
  }
  return search;
}

TEST(BeamSearchTest, IsTheOraclesRule) {
  size_t ended = 0;
  size_t cut_short = 0;
  for (uint32_t seed = 0; seed < 300; ++seed) {
    const Model model{.seed = seed,
                      .steps = 3 + seed % 20,
                      .end_bonus = 0.5F * static_cast<float>(seed % 5)};
    const double penalties[] = {1.0, 0.0, -1.0, 2.5};
    const Options setup{.params = {.width = 1 + seed % 5,
                                   .length_penalty = penalties[(seed / 5) % 4],
                                   .early_stopping = seed % 3 == 0},
                        .max_new_tokens = 1 + static_cast<int32_t>(seed % 13),
                        .end_ids = seed % 7 == 0 ? Tokens() : Tokens{kEnd}};
    const auto want = Plain(model, setup);
    const BeamSearch search = Search(model, setup);
    const auto got = search.Best();
    ASSERT_EQ(got.size(), want.size()) << "seed " << seed;
    for (size_t i = 0; i < want.size(); ++i) {
      EXPECT_EQ(got[i].tokens, want[i].second) << "seed " << seed;
      EXPECT_NEAR(got[i].score, want[i].first,
                  1e-6 * std::max(1.0, std::abs(want[i].first)));
      if (got[i].ended) ++ended;
    }
    if (search.length() < static_cast<uint32_t>(setup.max_new_tokens)) {
      ++cut_short;
    }
  }
  EXPECT_GT(ended, 200U);
  EXPECT_GT(cut_short, 20U);
}

// Several tokens may end a text; `width` others go on all the same.
TEST(BeamSearchTest, ManyEndsLeaveEnoughToGoOn) {
  Model model{.seed = 3, .steps = 9, .end_bonus = 50.0F};
  const Options setup{.params = {.width = 4, .early_stopping = false},
                      .max_new_tokens = 5,
                      .end_ids = {kEnd, 8, 9, 10, 11, 12, 13}};
  BeamSearch search(setup.params, setup.max_new_tokens, setup.end_ids);
  std::vector<float> logits = model({});
  for (const TokenId id : setup.end_ids) {
    logits[static_cast<size_t>(id)] = 50.0F;
  }
  const auto first = search.Rank(0, logits, ScanLogits(logits));
  search.Advance({&first, 1});
  // Four finished, and no live one can be better.
  EXPECT_EQ(search.live(), 0U);
  EXPECT_EQ(search.Best().size(), 4U);
  for (const auto& beam : search.Best()) {
    EXPECT_TRUE(beam.ended);
    EXPECT_EQ(beam.tokens.size(), 1U);
  }
}

TEST(BeamSearchTest, BeforeTheFirstStepThereIsOneEmptyBeam) {
  const BeamSearch search({.width = 3}, 5, {kEnd});
  EXPECT_EQ(search.live(), 1U);
  ASSERT_EQ(search.Best().size(), 1U);
  EXPECT_TRUE(search.Best()[0].tokens.empty());
  EXPECT_EQ(search.Best()[0].score, 0.0);
  EXPECT_EQ(BeamSearch({.width = 3}, 0, {kEnd}).live(), 0U);
}

// -inf is a logit like any other, only the last.
TEST(BeamSearchTest, ImpossibleTokensComeLast) {
  BeamSearch search({.width = 2}, 1, {kEnd});
  std::vector<float> logits(kVocabulary,
                            -std::numeric_limits<float>::infinity());
  logits[20] = 1.0F;
  const auto row = search.Rank(0, logits, ScanLogits(logits));
  search.Advance({&row, 1});
  const auto best = search.Best();
  ASSERT_EQ(best.size(), 2U);
  EXPECT_EQ(best[0].tokens, Tokens{20});
  EXPECT_EQ(best[0].score, 0.0);
  EXPECT_EQ(best[1].tokens, Tokens{0});
}

}  // namespace
}  // namespace kf::engine
