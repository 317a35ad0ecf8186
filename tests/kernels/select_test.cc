// Who is kept and who goes: the rule's own examples, ties, windows, and that
// survivors keep their bits.
#include <algorithm>
#include <cstring>
#include <map>
#include <memory>
#include <numeric>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/backend.h"
#include "kernels/cpu/attention_layout.h"
#include "tests/kernels/attention_rig.h"

namespace kf::testing {
namespace {

using ::testing::ElementsAre;

class SelectTest : public ::testing::TestWithParam<std::string> {
 protected:
  float& ScoreOf(const AttentionShape& shape,
                 const PageSpan& pages,
                 int32_t head,
                 int32_t slot) {
    return testing::ScoreOf(*backend_, shape, pages, head, slot);
  }

  const std::unique_ptr<Backend> backend_ = MakeBackend(GetParam());
};

// docs/keyformer.md, Selection: the worked example.
TEST_P(SelectTest, WorkedExample) {
  Sequence s(*backend_, SmallOptions(5, 3, 1));
  s.PrefillAll(32);
  const float scores[] = {.40F, .20F, .10F, .05F, .25F};
  for (int32_t g = 0; g < 2; ++g) {
    for (int32_t i = 0; i < 5; ++i) {
      ScoreOf(s.options().shape, s.prompt_pages(), g, i) = scores[i];
    }
  }
  s.Compact();
  const std::vector<HeldTokens> held = s.Held();
  for (const HeldTokens& head : held) {
    EXPECT_THAT(head.positions, ElementsAre(0, 1, 4));
    EXPECT_THAT(head.scores, ElementsAre(.40F, .20F, .25F));
  }
}

TEST_P(SelectTest, TiesKeepTheEarlier) {
  // No prompt row is scored: all scores are 0.
  SequenceOptions o = SmallOptions(40, 20, 5);
  o.score_first_row = 40;
  o.add_scores = false;
  Sequence s(*backend_, o);
  s.PrefillAll(32);
  s.Compact();
  std::vector<int32_t> want(15);
  std::iota(want.begin(), want.end(), 0);
  for (int32_t p = 35; p < 40; ++p) want.push_back(p);
  EXPECT_EQ(s.Held()[0].positions, want);
  EXPECT_EQ(s.Held()[1].positions, want);
  // Each step the latest position that has left the window goes.
  for (int32_t step = 0; step < 8; ++step) {
    s.StepAlone();
    want.erase(want.begin() + 15);
    want.push_back(40 + step);
    EXPECT_EQ(s.Held()[0].positions, want) << step;
  }
}

TEST_P(SelectTest, LowestScoreGoesAndFreesItsSlot) {
  SequenceOptions o = SmallOptions(40, 20, 5);
  o.add_scores = false;
  Sequence s(*backend_, o);
  s.PrefillAll(32);
  s.Compact();
  const AttentionShape& shape = o.shape;
  // Compacted slots are in position order: 0 .. 14 are older, 15 .. 19 recent.
  for (int32_t slot = 0; slot < 20; ++slot) {
    ScoreOf(shape, s.cache_pages(), 0, slot) = 1.0F + static_cast<float>(slot);
    ScoreOf(shape, s.cache_pages(), 1, slot) = 50.0F - static_cast<float>(slot);
  }
  ScoreOf(shape, s.cache_pages(), 0, 7) = 0.5F;
  ScoreOf(shape, s.cache_pages(), 0, 17) = 0.0F;  // recent: safe
  s.StepAlone();
  // Head 1: position 35, in slot 15, has just left the window.
  EXPECT_EQ(s.free_slot()[0], 7);
  EXPECT_EQ(s.free_slot()[1], 15);
  s.StepAlone();
  EXPECT_EQ(s.free_slot()[0], 0);
  EXPECT_EQ(s.free_slot()[1], 16);
}

TEST_P(SelectTest, WholeBudgetRecentIsAWindow) {
  Sequence s(*backend_, SmallOptions(50, 17, 17));
  s.PrefillAll(32);
  s.Compact();
  for (int32_t step = 0; step < 40; ++step) {
    std::vector<int32_t> want(17);
    std::iota(want.begin(), want.end(), 50 + step - 17);
    EXPECT_EQ(s.Held()[0].positions, want);
    EXPECT_EQ(s.Held()[1].positions, want);
    s.StepAlone();
  }
}

// docs/keyformer.md, Identities 7 and 8.
TEST_P(SelectTest, EveryPassHoldsItsBudgetAndAddsOneRow) {
  int32_t policy = 0;
  for (const auto& [n, k, w] :
       {std::tuple{60, 30, 9}, std::tuple{60, 30, 0}, std::tuple{8, 30, 9},
        std::tuple{3, 1, 0}, std::tuple{33, 16, 16}, std::tuple{47, 17, 1},
        std::tuple{70, 31, 12}, std::tuple{20, 33, 5}}) {
    SequenceOptions options = SmallOptions(n, k, w);
    options.age = (policy & 1) != 0;
    options.shared = options.defer = (policy & 2) != 0;
    options.rank_positions = (policy & 4) != 0;
    options.in_place = policy > 4;
    ++policy;
    Sequence s(*backend_, options);
    s.PrefillAll(32);
    s.Compact();
    const auto scores_of = [&s] {
      // Before a step, by (head, position).
      std::map<std::pair<size_t, int32_t>, double> scores;
      const std::vector<HeldTokens> held = s.Held();
      for (size_t g = 0; g < held.size(); ++g) {
        for (size_t i = 0; i < held[g].positions.size(); ++i) {
          scores[{g, held[g].positions[i]}] =
              static_cast<double>(held[g].scores[i]);
        }
      }
      return scores;
    };
    for (int32_t step = 0; step < 60; ++step) {
      const auto before = scores_of();
      s.StepAlone();
      const std::vector<HeldTokens> held = s.Held();
      for (size_t g = 0; g < held.size(); ++g) {
        const std::vector<int32_t>& positions = held[g].positions;
        ASSERT_EQ(std::ssize(positions), std::min(k, s.seen()));
        for (size_t i = 1; i < positions.size(); ++i) {
          ASSERT_LT(positions[i - 1], positions[i]);
        }
        for (int32_t r = 0; r < std::min(w, s.seen()); ++r) {
          ASSERT_EQ(positions[positions.size() - 1 - static_cast<size_t>(r)],
                    s.seen() - 1 - r);
        }
        // All but the victim's column: at most H / G, and less by its share.
        double added = 0.0;
        for (size_t i = 0; i < positions.size(); ++i) {
          const auto old = before.find({g, positions[i]});
          added += static_cast<double>(held[g].scores[i]) -
                   (old == before.end() ? 0.0 : old->second);
        }
        const bool evicted = s.seen() > k;
        ASSERT_LE(added, 2.0 + 1e-4);
        if (!evicted) {
          ASSERT_NEAR(added, 2.0, 1e-4);
        }
        if (k > 1) {
          ASSERT_GT(added, 0.5);
        }
      }
    }
  }
}

TEST_P(SelectTest, ColumnsOfAnEvictingStepAddUp) {
  Sequence s(*backend_, SmallOptions(60, 30, 9));
  s.PrefillAll(32);
  s.Compact();
  const AttentionShape& shape = s.options().shape;
  for (int32_t step = 0; step < 20; ++step) {
    // All 31 slots, the free one (which the new token takes at 0) included.
    const auto total = [&](int32_t g, int32_t skip) {
      double sum = 0.0;
      for (int32_t slot = 0; slot <= 30; ++slot) {
        if (slot == skip) continue;
        sum += static_cast<double>(ScoreOf(shape, s.cache_pages(), g, slot));
      }
      return sum;
    };
    const double before[] = {total(0, s.free_slot()[0]),
                             total(1, s.free_slot()[1])};
    s.StepAlone();
    EXPECT_NEAR(total(0, -1) - before[0], 2.0, 1e-4);
    EXPECT_NEAR(total(1, -1) - before[1], 2.0, 1e-4);
  }
}

INSTANTIATE_TEST_SUITE_P(Backends,
                         SelectTest,
                         ::testing::ValuesIn(BackendNames()),
                         [](const auto& param_info) {
                           return param_info.param;
                         });

// K and V of one slot, as bytes.
std::string KvBytes(const AttentionShape& shape,
                    const PageSpan& pages,
                    int32_t head,
                    int32_t slot) {
  const cpu::HeadLayout layout = cpu::MakeHeadLayout(shape);
  const unsigned char* block =
      cpu::BlockOf(cpu::MakeHeadPages(shape, pages, head), slot / kPageTokens);
  const int32_t at = slot % kPageTokens;
  std::string bytes;
  for (int64_t step = 0; step < layout.steps; ++step) {
    bytes.append(
        reinterpret_cast<const char*>(block) + (step * kPageTokens + at) * 4,
        4);
  }
  const size_t row =
      static_cast<size_t>(shape.head_dim) * (layout.bf16 ? 2 : 4);
  bytes.append(reinterpret_cast<const char*>(block) + layout.v_offset +
                   static_cast<size_t>(at) * row,
               row);
  return bytes;
}

int32_t PositionOf(const AttentionShape& shape,
                   const PageSpan& pages,
                   int32_t head,
                   int32_t slot) {
  return cpu::PositionsOf(cpu::MakeHeadLayout(shape),
                          cpu::BlockOf(cpu::MakeHeadPages(shape, pages, head),
                                       slot / kPageTokens))[slot % kPageTokens];
}

TEST(Survivors, KeepTheirBits) {
  int32_t policy = 0;
  for (const std::string& simd : SimdLevelNames()) {
    const auto backend = MakeCpu(simd, 2);
    for (const DType dtype : {DType::kF32, DType::kBF16}) {
      SequenceOptions o = SmallOptions(75, 37, 11);
      o.in_place = (policy & 1) != 0;
      o.shared = o.defer = (policy & 2) != 0;
      o.rank_positions = (policy & 4) != 0;
      o.age = o.rank_positions;
      ++policy;
      o.shape = {6, 3, 26, 14, 10000.0, dtype};
      Sequence s(*backend, o);
      s.PrefillAll(32);
      std::map<std::pair<int32_t, int32_t>, std::string> original;
      for (int32_t g = 0; g < 3; ++g) {
        for (int32_t p = 0; p < 75; ++p) {
          original[{g, p}] = KvBytes(o.shape, s.prompt_pages(), g, p);
        }
      }
      s.Compact();
      int32_t next[] = {0, 0, 0};
      for (int32_t step = 0; step < 60; ++step) {
        for (int32_t g = 0; g < 3; ++g) {
          for (int32_t slot = 0; slot <= s.held(); ++slot) {
            if (slot == s.free_slot()[g]) continue;
            const int32_t p = PositionOf(o.shape, s.cache_pages(), g, slot);
            const std::string bytes =
                KvBytes(o.shape, s.cache_pages(), g, slot);
            // A new token's bits are recorded when it is first seen.
            const auto [it, added] = original.try_emplace({g, p}, bytes);
            ASSERT_EQ(it->second, bytes) << "position " << p;
            if (added) {
              ASSERT_EQ(p, s.seen() - 1);
              ++next[g];
            }
          }
        }
        s.StepAlone();
      }
      for (const int32_t count : next) EXPECT_GT(count, 30);
    }
  }
}

}  // namespace
}  // namespace kf::testing
