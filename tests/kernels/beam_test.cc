// Beams of one request: one kept set, pages in common until they are copied,
// and the rows of all beams in the scores of each.
#include <memory>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/backend.h"
#include "tests/kernels/attention_rig.h"

namespace kf::testing {
namespace {

constexpr int32_t kPrompt = 60;
constexpr int32_t kBudget = 36;
constexpr int32_t kRecent = 8;
constexpr int32_t kSlots = kBudget + 1;
constexpr size_t kBeams = 3;
constexpr size_t kPages = 3;
constexpr size_t kLastPage = kPages - 1;

// Beams that start from one compacted prompt, with all its pages in common.
class Beams {
 public:
  explicit Beams(Backend& backend) : backend_(backend) {
    shape_ = {6, 2, 32, 32, 10000.0, DType::kBF16};
    pages_ = NanBuffer(backend, 20 * backend.PageBytes(shape_));
    free_slot_ = NanBuffer(backend, 2 * sizeof(int32_t));
    rows_ = NanBuffer(backend, kBeams * 2 * kSlots * sizeof(float));
    const std::vector<int32_t> prompt = {19, 14, 18, 16};
    Prefill(prompt);
    lists_.assign(kBeams, {0, 1, 2});
    const CompactLayer cut = {
        .from = Span(prompt), .to = Span(lists_[0]), .free_slot = free_slot()};
    ExpectOk(backend.Compact({.shape = shape_,
                              .prompt_tokens = kPrompt,
                              .budget = kBudget,
                              .recent = kRecent,
                              .layers = {&cut, 1},
                              .age = {},
                              .score_factor = float{kBeams}}));
  }

  // One page of a beam becomes its own.
  void Copy(size_t beam, size_t page) {
    const PageCopy copy = {lists_[beam][page], next_page_++};
    lists_[beam][page] = copy.to;
    ExpectOk(backend_.CopyPages(shape_, pages_->data(), {&copy, 1}));
  }

  // Feeds a token to each beam; with `rows` the scores stay in the pages.
  void Attend(bool rows) {
    std::vector<float> qkv = Rows(static_cast<int64_t>(kBeams), 11);
    std::vector<float> out(kBeams * static_cast<size_t>(shape_.out_dim()));
    std::vector<DecodeAttentionItem> items;
    for (size_t b = 0; b < kBeams; ++b) {
      items.push_back({.position = kPrompt,
                       .held = kBudget,
                       .budget = kBudget,
                       .recent = kRecent,
                       .cache = Span(lists_[b]),
                       .free_slot = free_slot(),
                       .score = {true, NoiseKind::kGumbel, false, 5, 0, 1.5F},
                       .defer_eviction = true,
                       .row_scores = rows ? row(b) : nullptr});
    }
    ExpectOk(backend_.DecodeAttention({.shape = shape_,
                                       .layer = 2,
                                       .qkv = qkv.data(),
                                       .out = out.data(),
                                       .items = items}));
  }

  float& Score(size_t beam, int32_t head, int32_t slot) {
    return ScoreOf(backend_, shape_, Span(lists_[beam]), head, slot);
  }
  std::vector<PageSpan> Caches() {
    std::vector<PageSpan> caches;
    for (const auto& list : lists_) caches.push_back(Span(list));
    return caches;
  }
  int32_t* free_slot() { return free_slot_->as<int32_t>(); }
  // What beam's row gives, [2, kSlots].
  float* row(size_t beam) { return rows_->as<float>() + beam * 2 * kSlots; }
  const AttentionShape& shape() const { return shape_; }

 private:
  static void ExpectOk(const absl::Status& status) { EXPECT_TRUE(status.ok()); }
  PageSpan Span(const std::vector<int32_t>& list) {
    return {pages_->data(), list};
  }
  std::vector<float> Rows(int64_t count, int64_t seed) const {
    std::vector<float> rows;
    for (int64_t i = 0; i < count * shape_.qkv_dim(); ++i) {
      rows.push_back(static_cast<float>((i * i + seed * i) % 101) / 40.0F -
                     1.2F);
    }
    return rows;
  }

  void Prefill(const std::vector<int32_t>& list) {
    std::vector<float> qkv = Rows(kPrompt, 7);
    std::vector<float> out(static_cast<size_t>(kPrompt * shape_.out_dim()));
    const PromptAttentionItem item = {
        .prompt_tokens = kPrompt,
        .rows = kPrompt,
        .keys = Span(list),
        .score = {true, NoiseKind::kGumbel, false, 5, 0, 1.0F}};
    ExpectOk(backend_.PromptAttention({.shape = shape_,
                                       .layer = 2,
                                       .qkv = qkv.data(),
                                       .out = out.data(),
                                       .items = {&item, 1}}));
  }

  Backend& backend_;
  AttentionShape shape_;
  std::unique_ptr<Buffer> pages_;
  std::unique_ptr<Buffer> free_slot_;
  std::unique_ptr<Buffer> rows_;
  std::vector<std::vector<int32_t>> lists_;
  int32_t next_page_ = kPages;
};

class BeamTest : public ::testing::TestWithParam<std::string> {
 protected:
  const std::unique_ptr<Backend> backend_ = MakeBackend(GetParam());
};

TEST_P(BeamTest, RowsOfAllBeamsCountOnceInEveryCache) {
  Beams beams(*backend_);
  ASSERT_EQ(beams.free_slot()[0], kBudget);
  // The free slot's page is written by each: its own. Others stay in common.
  for (size_t b = 1; b < kBeams; ++b) beams.Copy(b, kLastPage);
  std::vector<std::vector<float>> before(2);
  for (int32_t g = 0; g < 2; ++g) {
    for (int32_t slot = 0; slot < kBudget; ++slot) {
      before[static_cast<size_t>(g)].push_back(beams.Score(0, g, slot));
    }
    before[static_cast<size_t>(g)].push_back(0.0F);  // the new token
  }
  beams.Attend(/*rows=*/true);
  EXPECT_EQ(beams.free_slot()[0], kBudget) << "eviction is deferred";
  const float* rows[] = {beams.row(0), beams.row(1), beams.row(2)};
  for (size_t b = 0; b < kBeams; ++b) {
    for (int32_t g = 0; g < 2; ++g) {
      double sum = 0.0;
      for (int32_t slot = 0; slot < kSlots; ++slot) {
        EXPECT_EQ(beams.Score(b, g, slot),
                  before[static_cast<size_t>(g)][static_cast<size_t>(slot)])
            << "the pages keep their scores";
        sum += static_cast<double>(rows[b][g * kSlots + slot]);
      }
      EXPECT_NEAR(sum, 3.0, 1e-4) << "H / G columns add up";
    }
  }
  const std::vector<PageSpan> caches = beams.Caches();
  const SharedLayer layer = {.caches = caches, .free_slot = beams.free_slot()};
  ASSERT_TRUE(backend_
                  ->AddRowScores({.shape = beams.shape(),
                                  .layer = layer,
                                  .held = kBudget,
                                  .row_scores = rows})
                  .ok());
  std::vector<int32_t> victims;
  for (int32_t g = 0; g < 2; ++g) {
    int32_t victim = -1;
    float lowest = 0.0F;
    for (int32_t slot = 0; slot < kSlots; ++slot) {
      float want = before[static_cast<size_t>(g)][static_cast<size_t>(slot)];
      for (const float* row : rows) want += row[g * kSlots + slot];
      for (size_t b = 0; b < kBeams; ++b) {
        EXPECT_EQ(beams.Score(b, g, slot), want) << b << ", slot " << slot;
      }
      // Slots are in order of position.
      if (slot < kSlots - kRecent && (victim < 0 || want <= lowest)) {
        victim = slot;
        lowest = want;
      }
    }
    victims.push_back(victim);
  }
  ASSERT_TRUE(backend_
                  ->Evict({.shape = beams.shape(),
                           .position = kPrompt,
                           .held = kBudget,
                           .budget = kBudget,
                           .recent = kRecent,
                           .layers = {&layer, 1},
                           .age = {}})
                  .ok());
  EXPECT_EQ(beams.free_slot()[0], victims[0]);
  EXPECT_EQ(beams.free_slot()[1], victims[1]);
}

// A row apart is what the same step adds in the pages.
TEST_P(BeamTest, RowIsWhatAStepAdds) {
  Beams apart(*backend_);
  Beams added(*backend_);
  for (size_t b = 1; b < kBeams; ++b) {
    apart.Copy(b, kLastPage);
    for (size_t page = 0; page < kPages; ++page) added.Copy(b, page);
  }
  apart.Attend(/*rows=*/true);
  added.Attend(/*rows=*/false);
  for (size_t b = 0; b < kBeams; ++b) {
    for (int32_t g = 0; g < 2; ++g) {
      for (int32_t slot = 0; slot < kSlots; ++slot) {
        const float want = added.Score(b, g, slot) - apart.Score(b, g, slot);
        ASSERT_NEAR(apart.row(b)[g * kSlots + slot], want, 2e-5);
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Backends,
                         BeamTest,
                         ::testing::ValuesIn(BackendNames()),
                         [](const auto& param_info) {
                           return param_info.param;
                         });

}  // namespace
}  // namespace kf::testing
