#include "engine/cache/page_pool.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "kernels/core/noise.h"
#include "kernels/ref/ref_backend.h"
#include "tests/testing/matchers.h"

namespace kf::engine {
namespace {

std::unique_ptr<PagePool> MakePool(Backend& backend, int32_t pages) {
  auto pool = PagePool::Create(backend, 256, pages, "test pool");
  EXPECT_TRUE(pool.ok()) << pool.status();
  return std::move(pool).value();
}

TEST(PagePoolTest, GivesEachPageOnce) {
  const auto backend = CreateReferenceBackend();
  const auto pool = MakePool(*backend, 7);
  EXPECT_EQ(pool->total(), 7);
  EXPECT_EQ(pool->free_pages(), 7);
  const auto a = pool->Take(3);
  const auto b = pool->Take(4);
  std::set<int32_t> all(a.begin(), a.end());
  all.insert(b.begin(), b.end());
  EXPECT_EQ(all, (std::set<int32_t>{0, 1, 2, 3, 4, 5, 6}));
  EXPECT_EQ(pool->free_pages(), 0);
  pool->Give(a);
  EXPECT_EQ(pool->free_pages(), 3);
  pool->Give(b);
  EXPECT_EQ(pool->free_pages(), 7);
}

TEST(PagePoolTest, AnyMixOfTakesAndGivesKeepsPagesApart) {
  const auto backend = CreateReferenceBackend();
  const auto pool = MakePool(*backend, 64);
  std::vector<std::vector<int32_t>> owners;
  std::multiset<int32_t> taken;
  for (uint32_t i = 0; i < 2000; ++i) {
    const uint32_t draw = MixBits(i);
    const auto want = static_cast<int32_t>(draw % 9);
    if (want <= pool->free_pages()) {
      owners.push_back(pool->Take(want));
      taken.insert(owners.back().begin(), owners.back().end());
    }
    if (!owners.empty() && (draw >> 16) % 2 == 0) {
      const size_t victim = (draw >> 8) % owners.size();
      pool->Give(owners[victim]);
      for (const int32_t page : owners[victim]) {
        taken.erase(taken.find(page));
      }
      owners.erase(owners.begin() + static_cast<std::ptrdiff_t>(victim));
    }
    ASSERT_EQ(static_cast<size_t>(pool->free_pages()), 64 - taken.size());
    ASSERT_TRUE(std::adjacent_find(taken.begin(), taken.end()) == taken.end());
  }
}

TEST(PagePoolTest, APageIsFreeWhenItsLastOwnerLeaves) {
  const auto backend = CreateReferenceBackend();
  const auto pool = MakePool(*backend, 4);
  const auto pages = pool->Take(2);
  pool->Share(pages);
  pool->Share({pages.data(), 1});
  EXPECT_EQ(pool->owners(pages[0]), 3);
  EXPECT_EQ(pool->owners(pages[1]), 2);
  pool->Give(pages);
  EXPECT_EQ(pool->free_pages(), 2);
  pool->Give(pages);
  EXPECT_EQ(pool->free_pages(), 3);
  EXPECT_EQ(pool->owners(pages[1]), 0);
  EXPECT_DEATH(pool->Give(pages), "check failed");
  EXPECT_DEATH(pool->Share(pages), "check failed");
  pool->Give({pages.data(), 1});
  EXPECT_EQ(pool->free_pages(), 4);
}

TEST(PagePoolDeathTest, AForeignPageIsOurBug) {
  const auto backend = CreateReferenceBackend();
  const auto pool = MakePool(*backend, 4);
  const auto pages = pool->Take(2);
  pool->Give(pages);
  EXPECT_DEATH(pool->Give(pages), "check failed");
  EXPECT_DEATH(pool->Take(5), "check failed");
}

TEST(PagePoolTest, TooLargeNamesWhatAndSize) {
  const auto backend = CreateReferenceBackend();
  EXPECT_THAT(
      PagePool::Create(*backend, size_t{1} << 40, 1 << 20, "kv_pool_bytes"),
      testing::StatusIs(absl::StatusCode::kResourceExhausted, "kv_pool_bytes"));
}

}  // namespace
}  // namespace kf::engine
