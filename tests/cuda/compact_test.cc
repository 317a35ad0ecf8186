// Cuts of prompts against the reference: who stays, in what order, and with
// what.
#include "kernels/cuda/compact.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>
#include <ostream>
#include <string>
#include <vector>

#include "kernels/ref/ref_backend.h"
#include "tests/cuda/cache_twin.h"

namespace kf::cuda {
namespace {

enum class Scores : int32_t { kRandom, kTies, kEqual, kHostile };

struct CompactCase {
  const char* name;
  AttentionShape shape;
  int32_t tokens;
  int32_t budget;
  int32_t recent;
  Scores scores = Scores::kRandom;
  int32_t layers = 1;
  bool shared = false;
  bool in_place = false;
  bool age = false;
  float score_factor = 1.0F;
};

void PrintTo(const CompactCase& c, std::ostream* os) { *os << c.name; }

std::vector<float> DrawScores(Scores kind, size_t count, std::mt19937& random) {
  constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
  constexpr float kInf = std::numeric_limits<float>::infinity();
  const float hostile[] = {kNan, -kNan, 0.0F, -0.0F, kInf, 1e-38F, 3.0F, -1.0F};
  std::vector<float> scores;
  for (size_t i = 0; i < count; ++i) {
    switch (kind) {
      case Scores::kRandom:
        scores.push_back(std::exp(std::normal_distribution<float>()(random)));
        break;
      case Scores::kTies:
        scores.push_back(static_cast<float>(random() % 4) / 4.0F);
        break;
      case Scores::kEqual:
        scores.push_back(0.25F);
        break;
      case Scores::kHostile:
        scores.push_back(hostile[random() % std::size(hostile)]);
        break;
    }
  }
  return scores;
}

constexpr AttentionShape kTwoHeads = {4, 2, 16, 16, 1e4, DType::kBF16};
constexpr AttentionShape kFloats = {2, 2, 32, 0, 1e4, DType::kF32};

const CompactCase kCases[] = {
    {"OneToken", kTwoHeads, 1, 1, 0},
    {"OneTokenInPlace", kTwoHeads, 1, 1, 1, Scores::kEqual, 1, false, true},
    {"KeepOneOfAPage", kTwoHeads, 16, 1, 0},
    {"KeepOneRecent", kTwoHeads, 17, 1, 1},
    {"BelowAPage", kTwoHeads, 31, 15, 4},
    {"Page", kTwoHeads, 33, 16, 5},
    {"AboveAPage", kTwoHeads, 33, 17, 5},
    {"NoRecent", kTwoHeads, 65, 32, 0},
    {"Window", kTwoHeads, 65, 33, 33},
    {"AllButOne", kTwoHeads, 64, 63, 20},
    {"All", kTwoHeads, 63, 63, 20},
    {"BudgetBeyondThePrompt", kTwoHeads, 50, 200, 60},
    {"EqualScores", kTwoHeads, 129, 64, 16, Scores::kEqual},
    {"Ties", kTwoHeads, 127, 63, 16, Scores::kTies},
    {"NanAndInfinity", kTwoHeads, 128, 60, 9, Scores::kHostile},
    {"CutAmongNanAndInfinity", kTwoHeads, 128, 24, 4, Scores::kHostile},
    {"MoreThanAPassOfTheBlock", kTwoHeads, 1100, 560, 100, Scores::kTies},
    {"InPlace", kTwoHeads, 129, 65, 16, Scores::kTies, 1, false, true},
    {"InPlaceManyTiles", kFloats, 700, 650, 10, Scores::kRandom, 1, false,
     true},
    {"AllInPlace", kTwoHeads, 33, 40, 10, Scores::kRandom, 1, false, true,
     false, 3.0F},
    {"Age", kTwoHeads, 100, 50, 10, Scores::kRandom, 1, false, false, true},
    {"Factor", kTwoHeads, 100, 50, 10, Scores::kRandom, 1, false, false, false,
     4.0F},
    {"Layers", kTwoHeads, 66, 33, 10, Scores::kRandom, 3},
    {"SharedHeads", kTwoHeads, 90, 40, 10, Scores::kRandom, 1, true},
    {"SharedLayersInPlace", kTwoHeads, 150, 70, 10, Scores::kRandom, 3, true,
     true, true, 2.0F},
    {"SharedTies", kTwoHeads, 150, 70, 10, Scores::kEqual, 2, true},
    {"D64", {1, 1, 64, 64, 1e4, DType::kBF16}, 70, 30, 7},
    {"D80", {2, 2, 80, 32, 1e4, DType::kBF16}, 70, 30, 7},
    {"D96", {1, 1, 96, 96, 1e4, DType::kF32}, 70, 30, 7},
    {"D128", {1, 1, 128, 64, 1e4, DType::kBF16}, 130, 100, 7},
    {"D256", {1, 1, 256, 64, 1e4, DType::kF32}, 70, 40, 7},
    {"D48Padded", {1, 1, 48, 48, 1e4, DType::kBF16}, 70, 30, 7},
};

class CompactTest : public ::testing::TestWithParam<CompactCase> {};

TEST_P(CompactTest, EqualsReference) {
  const CompactCase& c = GetParam();
  const int32_t kept = std::min(c.budget, c.tokens);
  const int32_t from_pages = PagesFor(c.tokens);
  CacheTwin twin(c.shape, c.layers * (from_pages + PagesFor(kept)) + 2, 17);
  const auto heads = static_cast<size_t>(c.shape.kv_heads);
  TwinArray<int32_t> free_slots(
      std::vector<int32_t>(static_cast<size_t>(c.layers) * heads, -7));
  std::vector<std::vector<int32_t>> from;
  std::vector<std::vector<int32_t>> to;
  for (int32_t layer = 0; layer < c.layers; ++layer) {
    from.push_back(twin.TakePages(from_pages));
    to.push_back(c.in_place ? from.back() : twin.TakePages(PagesFor(kept)));
    to.back().resize(static_cast<size_t>(PagesFor(kept)));
    twin.PutPrompt(from.back(), c.tokens,
                   DrawScores(c.scores, static_cast<size_t>(c.tokens) * heads,
                              twin.random()));
  }
  std::vector<CompactLayer> layers;
  std::vector<CompactItem> items;
  for (size_t layer = 0; layer < from.size(); ++layer) {
    layers.push_back({.from = twin.Reference(from[layer]),
                      .to = twin.Reference(to[layer]),
                      .free_slot = &free_slots.host[layer * heads]});
    items.push_back({twin.Device(from[layer]), twin.Device(to[layer]),
                     free_slots.device.data() + layer * heads});
  }
  twin.Upload();
  const ScoreAge age = {c.age, c.tokens, std::max(1, c.tokens / 2), 0};

  gpu::DeviceArray<CompactItem> device_items(items);
  gpu::DeviceArray<int32_t> kept_memory(items.size() * heads *
                                        static_cast<size_t>(kept));
  gpu::DeviceArray<float> sums(static_cast<size_t>(c.tokens));
  CompactWork work;
  work.layout = twin.layout();
  work.items = device_items.data();
  work.layers = c.layers;
  work.tokens = c.tokens;
  work.budget = c.budget;
  work.recent = c.recent;
  work.shared = c.shared;
  work.in_place = c.in_place;
  work.age = age;
  work.score_factor = c.score_factor;
  work.kept = kept_memory.data();
  work.sums = sums.data();
  Compact(nullptr, work);
  ExpectNoFault(c.name);
  twin.Download();

  const auto reference = CreateReferenceBackend();
  ASSERT_TRUE(reference
                  ->Compact({.shape = c.shape,
                             .prompt_tokens = c.tokens,
                             .budget = c.budget,
                             .recent = c.recent,
                             .layers = layers,
                             .shared = c.shared,
                             .age = age,
                             .score_factor = c.score_factor})
                  .ok());
  EXPECT_EQ(free_slots.device.Download(), free_slots.host);
  for (size_t layer = 0; layer < from.size(); ++layer) {
    twin.ExpectSame(to[layer], kept, 0.0F, "layer " + std::to_string(layer));
  }
}

INSTANTIATE_TEST_SUITE_P(Cases,
                         CompactTest,
                         ::testing::ValuesIn(kCases),
                         [](const auto& test) {
                           return std::string(test.param.name);
                         });

}  // namespace
}  // namespace kf::cuda
