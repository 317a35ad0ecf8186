// Deferred evictions, rows of beams, bounds and copies of pages, against the
// reference.
#include "kernels/cuda/evict.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>
#include <ostream>
#include <string>
#include <vector>

#include "kernels/cuda/page_copy.h"
#include "kernels/cuda/quest.h"
#include "kernels/ref/ref_backend.h"
#include "tests/cuda/cache_twin.h"

namespace kf::cuda {
namespace {

constexpr AttentionShape kShape = {4, 2, 16, 16, 1e4, DType::kBF16};

struct EvictCase {
  const char* name;
  int32_t held;
  int32_t budget;
  int32_t recent;
  int32_t layers = 1;
  int32_t distinct_scores = 0;  // 0: random ones
  bool shared = false;
  bool age = false;
  bool nan = false;
};

void PrintTo(const EvictCase& c, std::ostream* os) { *os << c.name; }

const EvictCase kEvictCases[] = {
    {"OneSlot", 1, 1, 0},
    {"OneSlotRecent", 1, 1, 1},
    {"Grows", 15, 16, 4},
    {"GrowsShared", 30, 40, 4, 3, 0, true},
    {"Page", 16, 16, 5},
    {"TwoPages", 31, 31, 0},
    {"NoneButOneMayLeave", 40, 40, 40},
    {"MoreThanAPassOfTheBlock", 600, 600, 100},
    {"EqualScores", 50, 50, 10, 1, 1},
    {"Ties", 200, 200, 10, 1, 3},
    {"Nan", 50, 50, 10, 1, 0, false, false, true},
    {"Age", 64, 64, 10, 1, 0, false, true},
    {"Layers", 64, 64, 10, 4},
    {"SharedHeads", 64, 64, 10, 1, 0, true},
    {"SharedLayers", 65, 65, 10, 5, 0, true, true},
    {"SharedEqual", 65, 65, 10, 2, 1, true},
};

class EvictTest : public ::testing::TestWithParam<EvictCase> {};

TEST_P(EvictTest, EqualsReference) {
  const EvictCase& c = GetParam();
  const int32_t slots = c.held + 1;
  const auto heads = static_cast<size_t>(kShape.kv_heads);
  CacheTwin twin(kShape, c.layers * PagesFor(slots) + 1, 3);
  TwinArray<int32_t> free_slots(
      std::vector<int32_t>(static_cast<size_t>(c.layers) * heads, -7));
  // Positions of slots are in no order, the same in all heads where one choice
  // serves all.
  std::vector<int32_t> positions(static_cast<size_t>(slots));
  std::generate(positions.begin(), positions.end(),
                [next = -1]() mutable { return next += 2; });
  const int32_t newest = positions.back();
  std::vector<std::vector<int32_t>> lists;
  for (int32_t layer = 0; layer < c.layers; ++layer) {
    lists.push_back(twin.TakePages(PagesFor(slots)));
    for (int32_t head = 0; head < kShape.kv_heads; ++head) {
      if (!c.shared || (layer == 0 && head == 0)) {
        std::shuffle(positions.begin(), positions.end(), twin.random());
      }
      for (int32_t s = 0; s < slots; ++s) {
        float score = std::exp(twin.Normal());
        if (c.distinct_scores > 0) {
          score = static_cast<float>(twin.random()() %
                                     static_cast<uint32_t>(c.distinct_scores));
        }
        if (c.nan && s % 2 == 0) {
          score = std::copysign(std::numeric_limits<float>::quiet_NaN(),
                                s % 4 == 0 ? 1.0F : -1.0F);
        }
        twin.Put(lists.back(), head, s,
                 twin.RandomToken(positions[static_cast<size_t>(s)], score));
      }
    }
  }
  std::vector<PageSpan> spans;
  spans.reserve(lists.size());
  for (const auto& list : lists) spans.push_back(twin.Reference(list));
  std::vector<SharedLayer> layers;
  std::vector<EvictItem> items;
  for (size_t layer = 0; layer < lists.size(); ++layer) {
    layers.push_back({.caches = {&spans[layer], 1},
                      .free_slot = &free_slots.host[layer * heads]});
    items.push_back(
        {twin.Device(lists[layer]), free_slots.device.data() + layer * heads});
  }
  twin.Upload();
  const ScoreAge age = {c.age, newest / 2, newest / 3, newest / 2 + 1};

  gpu::DeviceArray<EvictItem> device_items(items);
  gpu::DeviceArray<float> sums(static_cast<size_t>(slots));
  EvictWork work;
  work.layout = twin.layout();
  work.items = device_items.data();
  work.layers = c.layers;
  work.position = newest;
  work.held = c.held;
  work.budget = c.budget;
  work.recent = c.recent;
  work.shared = c.shared;
  work.age = age;
  work.sums = sums.data();
  Evict(nullptr, work);
  ExpectNoFault(c.name);
  twin.Download();

  ASSERT_TRUE(CreateReferenceBackend()
                  ->Evict({.shape = kShape,
                           .position = newest,
                           .held = c.held,
                           .budget = c.budget,
                           .recent = c.recent,
                           .layers = layers,
                           .shared = c.shared,
                           .age = age})
                  .ok());
  EXPECT_EQ(free_slots.device.Download(), free_slots.host);
  for (const auto& list : lists) twin.ExpectSame(list, slots, 0.0F, c.name);
}

INSTANTIATE_TEST_SUITE_P(Cases,
                         EvictTest,
                         ::testing::ValuesIn(kEvictCases),
                         [](const auto& test) {
                           return std::string(test.param.name);
                         });

// Beams with pages in common: each slot gets each row once.
TEST(AddRowScoresTest, EqualsReference) {
  constexpr int32_t kHeld = 140;
  constexpr int32_t kSlotCount = kHeld + 1;
  CacheTwin twin(kShape, 30, 4);
  const std::vector<int32_t> first = twin.TakePages(PagesFor(kSlotCount));
  twin.PutPrompt(first, kSlotCount, {1.0F, 0.25F, 3.0F, 0.5F, 2.0F});
  // The second has the newest page of its own, the third all but the first.
  std::vector<std::vector<int32_t>> lists = {first, first, first};
  for (size_t beam = 1; beam < 3; ++beam) {
    for (size_t page = beam == 1 ? first.size() - 1 : 1; page < first.size();
         ++page) {
      lists[beam][page] = twin.TakePages(1)[0];
    }
  }
  for (int32_t head = 0; head < kShape.kv_heads; ++head) {
    for (int32_t slot = 0; slot < kSlotCount; ++slot) {
      for (size_t beam = 1; beam < 3; ++beam) {
        twin.Put(lists[beam], head, slot, twin.Want(first, head, slot));
      }
    }
  }
  std::vector<float> rows(size_t{3} * kShape.kv_heads * kSlotCount);
  std::generate(rows.begin(), rows.end(),
                [&] { return std::abs(twin.Normal()); });
  TwinArray<float> values(rows);
  std::vector<const float*> host_rows;
  std::vector<const float*> device_rows;
  std::vector<PageSpan> spans;
  std::vector<PageList> caches;
  for (size_t beam = 0; beam < 3; ++beam) {
    const size_t at = beam * static_cast<size_t>(kShape.kv_heads * kSlotCount);
    host_rows.push_back(values.host.data() + at);
    device_rows.push_back(values.device.data() + at);
    spans.push_back(twin.Reference(lists[beam]));
    caches.push_back(twin.Device(lists[beam]));
  }
  twin.Upload();
  gpu::DeviceArray<const float*> row_pointers(device_rows);
  gpu::DeviceArray<PageList> cache_lists(caches);
  AddRowScoresWork work;
  work.layout = twin.layout();
  work.held = kHeld;
  work.caches = cache_lists.data();
  work.cache_count = 3;
  work.row_scores = row_pointers.data();
  work.row_count = 3;
  AddRowScores(nullptr, work);
  ExpectNoFault("rows");
  twin.Download();
  ASSERT_TRUE(CreateReferenceBackend()
                  ->AddRowScores({.shape = kShape,
                                  .layer = {.caches = spans},
                                  .held = kHeld,
                                  .row_scores = host_rows})
                  .ok());
  for (const auto& list : lists) {
    twin.ExpectSame(list, kSlotCount, 1e-6F, "beam");
  }
}

TEST(BoundPagesTest, EqualsReference) {
  for (const AttentionShape& shape :
       {kShape, AttentionShape{1, 1, 80, 0, 1e4, DType::kF32},
        AttentionShape{2, 2, 10, 0, 1e4, DType::kBF16},
        AttentionShape{1, 1, 256, 0, 1e4, DType::kBF16}}) {
    for (const int32_t tokens : {1, 15, 16, 17, 300}) {
      CacheTwin twin(shape, 24, 6);
      const std::vector<int32_t> cache = twin.TakePages(PagesFor(tokens));
      const std::vector<int32_t> bounds =
          twin.TakePages(PagesFor(PagesFor(tokens)));
      twin.PutPrompt(cache, tokens, {1.0F});
      const PageList device_cache = twin.Device(cache);
      const PageList device_bounds = twin.Device(bounds);
      twin.Upload();
      BoundPages(nullptr, twin.layout(), tokens, device_cache, device_bounds);
      ExpectNoFault("bounds");
      twin.Download();
      ASSERT_TRUE(CreateReferenceBackend()
                      ->BoundPages(shape, tokens, twin.Reference(cache),
                                   twin.Reference(bounds))
                      .ok());
      for (int32_t head = 0; head < shape.kv_heads; ++head) {
        for (int32_t page = 0; page < PagesFor(tokens); ++page) {
          EXPECT_EQ(twin.Got(bounds, head, page).k,
                    twin.Want(bounds, head, page).k);
          EXPECT_EQ(twin.Got(bounds, head, page).v,
                    twin.Want(bounds, head, page).v);
        }
      }
    }
  }
}

TEST(PageCopyTest, WholePagesAndWhatIsHeld) {
  constexpr int32_t kSlotCount = 40;
  CacheTwin twin(kShape, 12, 8);
  const std::vector<int32_t> from = twin.TakePages(3);
  const std::vector<int32_t> to = twin.TakePages(3);
  twin.PutPrompt(from, kSlotCount, {0.5F, 1.5F, 2.5F});
  std::vector<PagePair> pairs;
  for (size_t i = 0; i < 3; ++i) pairs.push_back({from[i], to[i]});
  gpu::DeviceArray<PagePair> device_pairs(pairs);
  const PageList copy = twin.Device(to);
  twin.Upload();
  CopyPages(nullptr, twin.layout(), copy.base, device_pairs.data(), 3);
  const size_t count = static_cast<size_t>(kShape.kv_heads) * kSlotCount;
  gpu::DeviceArray<int32_t> positions(count);
  gpu::DeviceArray<float> scores(count);
  // Of one head a slot in the middle, of the others none that is here.
  std::vector<int32_t> free_slots(static_cast<size_t>(kShape.kv_heads),
                                  kSlotCount);
  free_slots[0] = 17;
  gpu::DeviceArray<int32_t> device_free(free_slots);
  GatherHeld(nullptr, twin.layout(), copy, kSlotCount, device_free.data(),
             positions.data(), scores.data());
  ExpectNoFault("copies");
  twin.Download();
  const std::vector<int32_t> got_positions = positions.Download();
  const std::vector<float> got_scores = scores.Download();
  for (int32_t head = 0; head < kShape.kv_heads; ++head) {
    for (int32_t slot = 0; slot < kSlotCount; ++slot) {
      const Token want = twin.Want(from, head, slot);
      const Token got = twin.Got(to, head, slot);
      EXPECT_EQ(got.k, want.k);
      EXPECT_EQ(got.v, want.v);
      const auto at =
          static_cast<size_t>(head) * kSlotCount + static_cast<size_t>(slot);
      const bool live = slot != free_slots[static_cast<size_t>(head)];
      EXPECT_EQ(got_positions[at], live ? want.position : -1);
      EXPECT_EQ(got_scores[at], live ? want.score : 0.0F);
    }
  }
}

}  // namespace
}  // namespace kf::cuda
