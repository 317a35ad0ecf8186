// A decode step on the device against the reference, and a row's bits against
// those of the row alone.
#include <gtest/gtest.h>

#include <ostream>
#include <string>
#include <vector>

#include "tests/cuda/decode_rig.h"

namespace kf::cuda {
namespace {

struct DecodeCase {
  const char* name;
  AttentionShape shape;
  std::vector<RowOptions> rows;
  Tolerance tolerance = {};
};

void PrintTo(const DecodeCase& c, std::ostream* os) { *os << c.name; }

constexpr DType kBf16 = DType::kBF16;
constexpr DType kF32 = DType::kF32;

AttentionShape Shape(int32_t query_heads,
                     int32_t kv_heads,
                     int32_t head_dim,
                     DType dtype,
                     int32_t rotary_dim = -1) {
  return {query_heads, kv_heads,
          head_dim,    rotary_dim < 0 ? head_dim : rotary_dim,
          10000.0,     dtype};
}

// Rows that evict, with `held` around the edges of pages and chunks.
std::vector<RowOptions> Edges() {
  std::vector<RowOptions> rows;
  uint32_t seed = 1;
  for (const int32_t held :
       {1, 14, 15, 16, 17, 31, 32, 63, 64, 127, 128, 129}) {
    rows.push_back({.held = held,
                    .budget = held,
                    .recent = held / 3,
                    .position = 2 * held + 1,
                    .seed = seed++});
  }
  return rows;
}

std::vector<RowOptions> Evicting(int32_t held) {
  return {{.held = held,
           .budget = held,
           .recent = held / 3,
           .position = 3 * held,
           .seed = 9}};
}

// Every feature of DecodeAttentionItem, in one batch.
std::vector<RowOptions> EveryKind() {
  std::vector<RowOptions> rows(14);
  for (size_t i = 0; i < rows.size(); ++i) {
    RowOptions& row = rows[i];
    row.held = 20 + 3 * static_cast<int32_t>(i);
    row.budget = row.held;
    row.recent = 5;
    row.position = row.held + 30;
    row.seed = static_cast<uint32_t>(i) + 20;
  }
  rows[0].budget += 7;  // grows
  rows[1].add_scores = false;
  rows[2].age = true;
  rows[3].rank_positions = true;
  rows[4].defer = true;
  rows[5].defer = rows[5].row_scores = true;
  rows[6].scored = false;
  rows[7].noise = NoiseKind::kNone;
  rows[8].noise = NoiseKind::kConstant;
  rows[9].noise = NoiseKind::kGaussian;
  rows[10].resample_once = true;
  rows[11].recent = rows[11].budget;  // only the new token's elders leave
  rows[12].nan_score = true;
  rows[13].defer = rows[13].row_scores = true;
  rows[13].add_scores = false;
  // Full: the first token, then a longer one.
  rows.push_back(
      {.held = 0, .budget = 9, .position = 0, .scored = false, .seed = 50});
  rows.push_back(
      {.held = 70, .budget = 90, .position = 70, .scored = false, .seed = 51});
  // A replay, over a page's end.
  rows.push_back({.held = 14,
                  .budget = 90,
                  .position = 14,
                  .scored = false,
                  .run = 5,
                  .seed = 52});
  // Quest: all pages, some, one, and a replay of it.
  const RowOptions quest = {.held = 150,
                            .budget = 400,
                            .position = 150,
                            .scored = false,
                            .quest = true,
                            .seed = 53};
  for (const int32_t read_pages : {0, 4, 1, 9, 10, 11}) {
    rows.push_back(quest);
    rows.back().read_pages = read_pages;
  }
  rows.push_back(quest);
  rows.back().read_pages = 3;
  rows.back().run = 12;
  return rows;
}

std::vector<RowOptions> Ranked() {
  std::vector<RowOptions> rows;
  for (const int32_t held : {1, 16, 40, 130}) {
    rows.push_back({.held = held,
                    .budget = held,
                    .recent = 1,
                    .position = 5 * held,
                    .rank_positions = true,
                    .seed = static_cast<uint32_t>(held)});
  }
  return rows;
}

std::vector<RowOptions> Hostile() {
  std::vector<RowOptions> rows = {{.held = 140,
                                   .budget = 140,
                                   .recent = 20,
                                   .position = 300,
                                   .outliers = true,
                                   .seed = 3},
                                  {.held = 60,
                                   .budget = 60,
                                   .recent = 10,
                                   .position = 90,
                                   .noise = NoiseKind::kNone,
                                   .equal_keys = true,
                                   .seed = 4},
                                  {.held = 60,
                                   .budget = 60,
                                   .recent = 10,
                                   .position = 90,
                                   .tau = 9.0F,
                                   .equal_keys = true,
                                   .seed = 5}};
  return rows;
}

// What is hard at once: one key, edges of a page and of a chunk, outliers, and
// keys that are all equal.
std::vector<RowOptions> HardAtOnce() {
  std::vector<RowOptions> rows;
  for (const int32_t held : {1, 16, 17, 128, 129}) {
    rows.push_back({.held = held,
                    .budget = held,
                    .recent = held / 4,
                    .position = 2 * held,
                    .seed = static_cast<uint32_t>(held)});
  }
  rows[2].outliers = true;
  rows[1].equal_keys = true;
  rows[1].noise = NoiseKind::kNone;
  return rows;
}

// Products of bf16 numbers are exact in f32, and the weights of V keep 16 bits:
// only the order of sums differs. Outliers make logits of a thousand, of which
// f32 keeps 1e-4.
constexpr Tolerance kOutlierTolerance = {2e-4F, 2e-4F};

const DecodeCase kCases[] = {
    {"EdgesBf16", Shape(4, 2, 32, kBf16), Edges()},
    {"EdgesF32", Shape(4, 2, 32, kF32), Edges()},
    {"EveryKindBf16", Shape(6, 2, 32, kBf16), EveryKind()},
    {"EveryKindF32", Shape(6, 2, 32, kF32), EveryKind()},
    {"RankedBf16", Shape(3, 1, 80, kBf16, 64), Ranked()},
    {"RankedF32", Shape(3, 1, 80, kF32, 62), Ranked()},
    {"RankedD16Bf16", Shape(2, 2, 16, kBf16), Ranked()},
    {"HostileBf16", Shape(4, 1, 64, kBf16), Hostile(), kOutlierTolerance},
    {"HostileF32", Shape(4, 1, 64, kF32), Hostile(), kOutlierTolerance},
    {"Group1D64", Shape(2, 2, 64, kBf16), Evicting(70)},
    {"Group8D64", Shape(8, 1, 64, kBf16), Evicting(70)},
    {"Group8D64F32", Shape(8, 1, 64, kF32), Evicting(70)},
    {"Group9D16", Shape(18, 2, 16, kBf16), Evicting(70)},
    {"Group9D16F32", Shape(18, 2, 16, kF32), Evicting(70)},
    {"Group7D128", Shape(7, 1, 128, kBf16), Evicting(130)},
    {"D80NoRotary", Shape(2, 1, 80, kBf16, 0), Evicting(40)},
    {"D80F32", Shape(2, 1, 80, kF32), Evicting(40)},
    {"D96", Shape(4, 2, 96, kBf16), Evicting(40)},
    {"D96F32", Shape(2, 1, 96, kF32), Evicting(40)},
    {"D128F32", Shape(2, 1, 128, kF32, 32), Evicting(40)},
    {"D256", Shape(2, 1, 256, kBf16), Evicting(40)},
    {"D256F32", Shape(2, 1, 256, kF32), Evicting(40)},
    // Groups of 1 to 8 over the head sizes of real models.
    {"HardGroup1D80", Shape(2, 2, 80, kBf16), HardAtOnce(), kOutlierTolerance},
    {"HardGroup2D96", Shape(2, 1, 96, kBf16), HardAtOnce(), kOutlierTolerance},
    {"HardGroup3D128", Shape(3, 1, 128, kBf16), HardAtOnce(),
     kOutlierTolerance},
    {"HardGroup4D128", Shape(8, 2, 128, kBf16), HardAtOnce(),
     kOutlierTolerance},
    {"HardGroup5D64", Shape(5, 1, 64, kBf16), HardAtOnce(), kOutlierTolerance},
    {"HardGroup6D80", Shape(6, 1, 80, kBf16), HardAtOnce(), kOutlierTolerance},
    {"HardGroup7D96", Shape(7, 1, 96, kBf16), HardAtOnce(), kOutlierTolerance},
    {"HardGroup8D256", Shape(8, 1, 256, kBf16), HardAtOnce(),
     kOutlierTolerance},
    {"HardGroup5D256F32", Shape(5, 1, 256, kF32), HardAtOnce(),
     kOutlierTolerance},
    {"HardGroup6D128F32", Shape(6, 1, 128, kF32), HardAtOnce(),
     kOutlierTolerance},
    {"D16F32", Shape(2, 1, 16, kF32), Evicting(40)},
    {"D48Padded", Shape(2, 1, 48, kBf16), Evicting(40)},
    {"D10Padded", Shape(2, 2, 10, kBf16, 4), Evicting(40)},
    {"D10PaddedF32", Shape(2, 2, 10, kF32, 6), Evicting(40)},
};

class DecodeTest : public ::testing::TestWithParam<DecodeCase> {};

TEST_P(DecodeTest, EqualsReference) {
  DecodeBatch batch(GetParam().shape, GetParam().rows);
  batch.Run();
  batch.ExpectReference(GetParam().tolerance);
}

INSTANTIATE_TEST_SUITE_P(Cases,
                         DecodeTest,
                         ::testing::ValuesIn(kCases),
                         [](const auto& test) {
                           return std::string(test.param.name);
                         });

// A row has the bits of the row alone, in any place of any batch, whatever the
// grid.
TEST(DecodeInvarianceTest, BatchAndGrid) {
  for (const DType dtype : {kBf16, kF32}) {
    const AttentionShape shape = Shape(4, 2, 32, dtype);
    const std::vector<RowOptions> rows = EveryKind();
    DecodeBatch batch(shape, rows);
    batch.Run(2);
    std::vector<RowOptions> reversed(rows.rbegin(), rows.rend());
    DecodeBatch back(shape, reversed);
    back.Run();
    for (size_t i = 0; i < rows.size(); ++i) {
      EXPECT_EQ(batch.StateOf(i), back.StateOf(rows.size() - 1 - i)) << i;
      if (i % 4 != 0) continue;
      DecodeBatch alone(shape, {rows[i]});
      alone.Run();
      EXPECT_EQ(batch.StateOf(i), alone.StateOf(0)) << i;
    }
  }
}

// What does not fit the working memory together is done in groups.
TEST(DecodeInvarianceTest, Groups) {
  const AttentionShape shape = Shape(4, 2, 32, kF32);
  std::vector<RowOptions> rows = EveryKind();
  rows.push_back({.held = 30,
                  .budget = 99,
                  .position = 30,
                  .scored = false,
                  .run = 5,
                  .seed = 4});
  DecodeBatch whole(shape, rows);
  whole.Run();
  std::vector<DecodeItem> items = whole.Items();
  const int64_t words = PlanDecode(whole.shape(), items).words;
  for (const int64_t most : {int64_t{1}, words / 3, words}) {
    DecodeBatch batch(shape, rows);
    const size_t groups = batch.RunInGroups(most);
    // A row that needs more than the limit is a group.
    EXPECT_EQ(groups == 1, most == words) << groups;
    EXPECT_EQ(groups == items.size(), most == 1) << groups;
    for (size_t i = 0; i < rows.size(); ++i) {
      EXPECT_EQ(batch.StateOf(i), whole.StateOf(i)) << most << " " << i;
    }
    std::vector<DecodeItem> planned = batch.Items();
    for (const DecodeGroup& group :
         PlanDecodeGroups(whole.shape(), planned, most)) {
      EXPECT_TRUE(group.plan.words <= most || group.rows == 1);
    }
  }
}

// A replay gives what the steps one by one do.
TEST(DecodeInvarianceTest, Replay) {
  for (const DType dtype : {kBf16, kF32}) {
    const AttentionShape shape = Shape(4, 2, 32, dtype);
    RowOptions row = {.held = 30,
                      .budget = 99,
                      .position = 30,
                      .scored = false,
                      .quest = true,
                      .read_pages = 2,
                      .run = 5,
                      .seed = 4};
    DecodeBatch together(shape, {row});
    together.Run();
    DecodeBatch one_by_one(shape, {row});
    one_by_one.RunOneByOne();
    EXPECT_EQ(together.StateOf(0), one_by_one.StateOf(0));
  }
}

}  // namespace
}  // namespace kf::cuda
