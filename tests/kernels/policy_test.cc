// Each policy's own rule, by hand and on every backend: sinks and window, age,
// sets shared by heads and layers, NaN, and the pages that Quest reads.
#include <cstring>
#include <limits>
#include <memory>
#include <numeric>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/backend.h"
#include "tests/kernels/attention_rig.h"

namespace kf::testing {
namespace {

using ::testing::ElementsAre;

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

class PolicyTest : public ::testing::TestWithParam<std::string> {
 protected:
  // Scores of a sequence's slots, the same in all heads.
  void SetScores(Sequence& s,
                 const PageSpan& pages,
                 const std::vector<float>& scores) {
    for (int32_t g = 0; g < s.options().shape.kv_heads; ++g) {
      for (size_t i = 0; i < scores.size(); ++i) {
        Set(s, pages, g, static_cast<int32_t>(i), scores[i]);
      }
    }
  }
  void Set(Sequence& s,
           const PageSpan& pages,
           int32_t head,
           int32_t slot,
           float score) {
    ScoreOf(*backend_, s.options().shape, pages, head, slot) = score;
  }

  const std::unique_ptr<Backend> backend_ = MakeBackend(GetParam());
};

// WINDOW is no kernel of its own: without scores, ties keep the first k - w of
// the prompt, and later let the latest go that is not recent.
TEST_P(PolicyTest, WithoutScoresTheSinksAndTheWindowStay) {
  for (const auto& [n, k, sinks] :
       {std::tuple{60, 20, 4}, std::tuple{60, 20, 0}, std::tuple{3, 20, 4},
        std::tuple{19, 20, 4}, std::tuple{20, 20, 19}, std::tuple{40, 1, 0}}) {
    SequenceOptions options = SmallOptions(n, k, k - sinks);
    options.score.enabled = false;
    Sequence s(*backend_, options);
    s.PrefillAll(32);
    s.Compact();
    for (int32_t step = 0; step < 40; ++step) {
      std::vector<int32_t> want;
      for (int32_t p = 0; p < s.seen(); ++p) {
        if (p < sinks || p >= s.seen() - (k - sinks)) want.push_back(p);
      }
      for (const HeldTokens& head : s.Held()) {
        ASSERT_EQ(head.positions, want) << n << " " << k << " " << step;
        for (const float score : head.scores) ASSERT_EQ(score, 0.0F);
      }
      s.StepAlone();
    }
  }
}

TEST_P(PolicyTest, AgeComparesByRowsThatSaw) {
  SequenceOptions options = SmallOptions(5, 3, 1);
  options.age = true;
  options.add_scores = false;
  Sequence s(*backend_, options);
  s.PrefillAll(32);
  // Rows that saw: 5, 4, 3, 2, 1.
  SetScores(s, s.prompt_pages(), {.40F, .36F, .10F, .28F, 0.0F});
  s.Compact();
  EXPECT_THAT(s.Held()[0].positions, ElementsAre(1, 3, 4));
  EXPECT_THAT(s.Held()[0].scores, ElementsAre(.36F, .28F, 0.0F));
  // 4 has left the window: .36 / 4 is less than .28 / 2 and .10 / 1.
  SetScores(s, s.cache_pages(), {.36F, .28F, .10F});
  s.StepAlone();
  EXPECT_THAT(s.Held()[1].positions, ElementsAre(3, 4, 5));
}

TEST(ScoreAgeTest, RowsThatSaw) {
  constexpr ScoreAge kAge = {true, 100, 30, 7};
  static_assert(kAge.RowsThatSaw(0) == 37);
  static_assert(kAge.RowsThatSaw(70) == 37);
  static_assert(kAge.RowsThatSaw(71) == 36);
  static_assert(kAge.RowsThatSaw(99) == 8);
  static_assert(kAge.RowsThatSaw(100) == 7);
  static_assert(kAge.RowsThatSaw(106) == 1);
  // decode_scores off: a new token counts as seen once.
  static_assert(ScoreAge{true, 100, 30, 0}.RowsThatSaw(106) == 1);
}

// Scores equal to the rows that saw each token, of the prompt and of decode,
// are ties: the latest goes. A hair less and it is that one.
TEST_P(PolicyTest, AgeOfDecodedTokens) {
  SequenceOptions options = SmallOptions(100, 120, 0);
  options.age = true;
  options.score_first_row = 70;
  Sequence s(*backend_, options);
  s.PrefillAll(32);
  s.Compact();
  for (int32_t step = 0; step < 20; ++step) s.StepAlone();
  // The 121st token: one has gone, but its slot is as it was, so position p is
  // in slot p, and all are looked at again.
  s.StepAlone();
  const ScoreAge age = {true, 100, 30, 22};
  const auto evict = [&](int32_t lower) {
    for (int32_t slot = 0; slot <= 120; ++slot) {
      const auto rows = static_cast<float>(age.RowsThatSaw(slot));
      for (int32_t g = 0; g < 2; ++g) {
        Set(s, s.cache_pages(), g, slot, slot == lower ? rows * 0.99F : rows);
      }
    }
    const PageSpan cache = s.cache_pages();
    const SharedLayer layer = {.caches = {&cache, 1},
                               .free_slot = s.free_slot()};
    EXPECT_TRUE(backend_
                    ->Evict({.shape = options.shape,
                             .position = 121,
                             .held = 120,
                             .budget = 120,
                             .recent = 0,
                             .layers = {&layer, 1},
                             .age = age})
                    .ok());
    return s.free_slot()[0];
  };
  EXPECT_EQ(evict(-1), 120);
  EXPECT_EQ(evict(3), 3);
  EXPECT_EQ(evict(85), 85);
  EXPECT_EQ(evict(110), 110);
}

// Two layers of two heads choose one set by the sum, in the prompt and after.
TEST_P(PolicyTest, ModelScopeSumsHeadsAndLayers) {
  SequenceOptions options = SmallOptions(40, 4, 1);
  options.shared = options.defer = true;
  options.add_scores = false;
  Sequence a(*backend_, options);
  options.layer = 1;
  options.data_seed = 2;
  Sequence b(*backend_, options);
  Sequence* layers[] = {&a, &b};
  for (Sequence* s : layers) {
    s->PrefillAll(32);
    SetScores(*s, s->prompt_pages(), std::vector<float>(40, 1.0F));
  }
  // Sums: 5: 6, 9: 5.5, 17: 5.25; alone, 30 and 31 win a head each.
  Set(a, a.prompt_pages(), 0, 5, 3.0F);
  Set(a, a.prompt_pages(), 1, 9, 2.5F);
  Set(b, b.prompt_pages(), 0, 17, 2.25F);
  Set(a, a.prompt_pages(), 0, 30, 9.0F);
  Set(a, a.prompt_pages(), 1, 30, -9.0F);
  Set(b, b.prompt_pages(), 1, 31, 8.0F);
  Set(b, b.prompt_pages(), 0, 31, -8.0F);
  Sequence::Compact(layers);
  for (Sequence* s : layers) {
    for (const HeldTokens& head : s->Held()) {
      EXPECT_THAT(head.positions, ElementsAre(5, 9, 17, 39));
    }
  }
  // 17 has the lowest sum, but 5 the lowest score of one head, and 9 that of
  // the last.
  Set(a, a.cache_pages(), 0, 0, -1.0F);
  Set(b, b.cache_pages(), 1, 0, 9.0F);
  Set(b, b.cache_pages(), 0, 2, 0.0F);
  Set(b, b.cache_pages(), 1, 3, 9.0F);
  Set(b, b.cache_pages(), 1, 1, 0.5F);
  for (Sequence* s : layers) Sequence::Attend({&s, 1});
  Sequence::Evict(layers);
  for (Sequence* s : layers) {
    for (const HeldTokens& head : s->Held()) {
      EXPECT_THAT(head.positions, ElementsAre(5, 9, 39, 40));
    }
  }
}

TEST_P(PolicyTest, NanCountsAsInfinityAndMinusZeroAsZero) {
  SequenceOptions options = SmallOptions(8, 5, 1);
  options.add_scores = false;
  Sequence s(*backend_, options);
  s.PrefillAll(32);
  SetScores(s, s.prompt_pages(),
            {-0.0F, 0.0F, 1.0F, -kNan, 0.0F, kNan, -1.0F, 0.0F});
  s.Compact();
  EXPECT_THAT(s.Held()[0].positions, ElementsAre(0, 2, 3, 5, 7));
  // Slots: 0, 2, 3, 5, 7. Zeros tie: 7, which has left the window, goes.
  SetScores(s, s.cache_pages(), {-0.0F, 1.0F, -kNan, kNan, 0.0F});
  s.StepAlone();
  EXPECT_THAT(s.Held()[0].positions, ElementsAre(0, 2, 3, 5, 8));
  // All NaN, a tie: the latest goes that is not recent.
  SetScores(s, s.cache_pages(), std::vector<float>(6, kNan));
  s.StepAlone();
  EXPECT_THAT(s.Held()[0].positions, ElementsAre(0, 2, 3, 5, 9));
}

// A kept score is multiplied, and the choice sees the product.
TEST_P(PolicyTest, FactorMultipliesWhatIsKept) {
  for (const bool in_place : {false, true}) {
    SequenceOptions options = SmallOptions(20, 18, 2);
    options.in_place = in_place;
    options.score_factor = -2.0F;  // turns the order round
    Sequence s(*backend_, options);
    s.PrefillAll(32);
    std::vector<float> scores(20);
    std::iota(scores.begin(), scores.end(), 1.0F);
    SetScores(s, s.prompt_pages(), scores);
    s.Compact();
    std::vector<int32_t> positions(16);
    std::iota(positions.begin(), positions.end(), 0);
    positions.insert(positions.end(), {18, 19});
    for (const HeldTokens& head : s.Held()) {
      EXPECT_EQ(head.positions, positions);
      for (size_t i = 0; i < positions.size(); ++i) {
        EXPECT_EQ(head.scores[i], -2.0F * static_cast<float>(positions[i] + 1));
      }
    }
  }
}

// Values say which tokens a step read: channel 0 of V is the token's page, and
// all keys weigh the same since logits are 0, or nearly so.
SequenceOptions QuestOptions(int32_t prompt, int32_t pages) {
  SequenceOptions o;
  o.shape = {2, 1, 2, 0, 10000.0, DType::kF32};
  o.prompt = prompt;
  o.max_steps = 40;
  o.budget = prompt + 40;
  o.quest = true;
  o.read_pages = pages;
  return o;
}

// The mean page number of the tokens in `pages`, of which the last holds
// `tokens`.
double MeanPage(const std::vector<int32_t>& pages, int32_t tokens) {
  double sum = 0.0;
  double count = 0.0;
  for (const int32_t page : pages) {
    const double here = page == pages.back() ? tokens : kPageTokens;
    sum += here * page;
    count += here;
  }
  return sum / count;
}

TEST_P(PolicyTest, QuestTiesReadTheEarlierPages) {
  SequenceOptions options = QuestOptions(70, 3);
  options.rows = [](int32_t p) {
    // q of two heads, k, v.
    const int32_t page = p / kPageTokens;
    return std::vector<float>{1, 1, 1, -1, 0, 0, static_cast<float>(page), 1};
  };
  Sequence s(*backend_, options);
  s.PrefillAll(32);
  s.Compact();
  // Page 4 holds positions 64 .. 79; then page 5 is the newest.
  for (int32_t p = 70; p < 90; ++p) {
    s.StepAlone();
    const double want = MeanPage({0, 1, p / 16}, p % 16 + 1);
    EXPECT_NEAR(s.step_out().back()[0], want, 1e-5) << p;
    EXPECT_NEAR(s.step_out().back()[2], want, 1e-5) << p;
  }
}

TEST_P(PolicyTest, QuestReadsTheHighestBoundsOfAnyHead) {
  SequenceOptions options = QuestOptions(96, 3);
  // Head 0 looks along channel 0, head 1 against channel 1: page 4 has the
  // largest channel 0, page 2 the smallest channel 1, page 1 large values of
  // the wrong sign.
  options.rows = [](int32_t p) {
    float k0 = 0.0F;
    float k1 = 0.0F;
    if (p == 70) k0 = 3e-6F;
    if (p == 33) k1 = -2e-6F;
    if (p == 20) k0 = -9e-6F;
    if (p == 21) k1 = 9e-6F;
    if (p == 3) k0 = 1e-6F;
    // A generated token raises the bound of its own page.
    if (p == 97) k0 = 8e-6F;
    const int32_t page = p / kPageTokens;
    return std::vector<float>{1, 0, 0, -1, k0, k1, static_cast<float>(page), 1};
  };
  Sequence s(*backend_, options);
  s.PrefillAll(32);
  s.Compact();
  for (int32_t p = 96; p < 120; ++p) {
    s.StepAlone();
    const double want =
        p < 112 ? MeanPage({2, 4, 6}, p - 95) : MeanPage({4, 6, 7}, p - 111);
    EXPECT_NEAR(s.step_out().back()[0], want, 1e-4) << p;
  }
}

// A replay: many tokens of a sequence in one call leave the same bytes in its
// pages, and give the same rows, as one by one; runs begin and end anywhere.
TEST_P(PolicyTest, ARunIsWhatItsRowsAreOneByOne) {
  for (const DType dtype : {DType::kF32, DType::kBF16, DType::kI8}) {
    const auto options_of = [dtype](int32_t prompt, int32_t read_pages) {
      SequenceOptions o = SmallOptions(prompt, prompt + 100, 0);
      o.shape.cache_dtype = dtype;
      o.score.enabled = false;
      o.data_seed = static_cast<uint32_t>(prompt);
      o.quest = read_pages > 0;
      o.read_pages = read_pages;
      return o;
    };
    Sequence full_run(*backend_, options_of(45, 0));
    Sequence full_alone(*backend_, options_of(45, 0));
    Sequence quest_run(*backend_, options_of(520, 2));
    Sequence quest_alone(*backend_, options_of(520, 2));
    for (Sequence* s : {&full_run, &full_alone, &quest_run, &quest_alone}) {
      s->PrefillAll(32);
      s->Compact();
    }
    for (const int32_t tokens : {1, 40, 3, 33}) {
      Sequence* const runs[] = {&full_run, &quest_run};
      Sequence::Attend(runs, tokens);
      for (int32_t i = 0; i < tokens; ++i) {
        full_alone.StepAlone();
        quest_alone.StepAlone();
      }
    }
    for (const auto& [run, alone] :
         {std::pair{&full_run, &full_alone}, {&quest_run, &quest_alone}}) {
      ASSERT_EQ(run->step_out(), alone->step_out());
      ASSERT_EQ(run->pool().size(), alone->pool().size());
      EXPECT_EQ(std::memcmp(run->pool().data(), alone->pool().data(),
                            run->pool().size()),
                0);
      for (int32_t g = 0; g < 2; ++g) {
        EXPECT_EQ(run->free_slot()[g], alone->free_slot()[g]);
      }
      EXPECT_EQ(run->Held()[1].positions, alone->Held()[1].positions);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Backends,
                         PolicyTest,
                         ::testing::ValuesIn(BackendNames()),
                         [](const auto& param_info) {
                           return param_info.param;
                         });

}  // namespace
}  // namespace kf::testing
