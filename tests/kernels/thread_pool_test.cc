#include "kernels/core/thread_pool.h"

#include <gtest/gtest.h>

#include <atomic>
#include <vector>

namespace kf {
namespace {

class ThreadPoolTest : public ::testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Threads,
                         ThreadPoolTest,
                         ::testing::Values(1, 2, 3, 8, 33));

TEST_P(ThreadPoolTest, RunsEachIndexOnce) {
  ThreadPool pool(GetParam());
  EXPECT_EQ(pool.threads(), GetParam());
  for (const int64_t count : {0, 1, 2, 7, 1000}) {
    // Plain integers: the region's end must make them visible to us.
    std::vector<int> calls(static_cast<size_t>(count));
    pool.ParallelFor(count, [&](int64_t index, int worker) {
      EXPECT_GE(worker, 0);
      EXPECT_LT(worker, GetParam());
      ++calls[static_cast<size_t>(index)];
    });
    EXPECT_EQ(calls, std::vector<int>(static_cast<size_t>(count), 1));
  }
}

TEST_P(ThreadPoolTest, WorkerNumbersAreExclusive) {
  ThreadPool pool(GetParam());
  std::vector<std::atomic<int>> inside(static_cast<size_t>(GetParam()));
  std::atomic<int> collisions{0};
  for (int region = 0; region < 50; ++region) {
    pool.ParallelFor(64, [&](int64_t, int worker) {
      std::atomic<int>& mine = inside[static_cast<size_t>(worker)];
      if (mine.fetch_add(1) != 0) collisions.fetch_add(1);
      mine.fetch_sub(1);
    });
  }
  EXPECT_EQ(collisions.load(), 0);
}

// Regions that follow at once meet workers that still leave the last one.
TEST_P(ThreadPoolTest, ManySmallRegions) {
  ThreadPool pool(GetParam());
  std::vector<int64_t> sums(static_cast<size_t>(GetParam()) * 16);
  int64_t expected = 0;
  for (int64_t region = 0; region < 3000; ++region) {
    const int64_t count = 1 + region % 5;
    // What a region reads was written by the caller just before it.
    const int64_t value = region;
    pool.ParallelFor(count, [&sums, value](int64_t, int worker) {
      sums[static_cast<size_t>(worker) * 16] += value;
    });
    expected += count * value;
  }
  int64_t total = 0;
  for (const int64_t sum : sums) total += sum;
  EXPECT_EQ(total, expected);
}

// All threads do take part: a region in which each index waits for the others
// ends only then.
TEST(ThreadPoolTest, ThreadsRunAtTheSameTime) {
  constexpr int kThreads = 4;
  ThreadPool pool(kThreads);
  std::atomic<int> arrived{0};
  pool.ParallelFor(kThreads, [&](int64_t, int) {
    arrived.fetch_add(1);
    while (arrived.load() < kThreads) {
    }
  });
  EXPECT_EQ(arrived.load(), kThreads);
}

TEST_P(ThreadPoolTest, EndsWithoutWork) {
  for (int i = 0; i < 5; ++i) ThreadPool pool(GetParam());
}

}  // namespace
}  // namespace kf
