#include "kernels/cpu/for_each_ahead.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <vector>

#include "kernels/core/mutex.h"
#include "kernels/core/thread_pool.h"

namespace kf::cpu {
namespace {

struct Call {
  int64_t index;
  IndexRun run;
  int64_t next;
  int worker;
};

// Runs of `length`, the last of them shorter.
std::vector<Call> CallsOf(int threads, int64_t count, int64_t length) {
  ThreadPool pool(threads);
  Mutex mu;
  std::vector<Call> calls;
  ForEachAhead(
      pool, count,
      [&](int64_t i) { return std::min(count, (i / length + 1) * length); },
      [&](int64_t index, IndexRun run, int64_t next, int worker) {
        const MutexLock lock(mu);
        calls.push_back({index, run, next, worker});
      });
  return calls;
}

class ForEachAheadTest : public ::testing::TestWithParam<int> {};

TEST_P(ForEachAheadTest, RunsEachIndexOnceAndWhatItPromised) {
  const int threads = GetParam();
  for (const int64_t length : {1, 4, 7}) {
    for (const int64_t count : {0, 1, 2, 3, 13, 100}) {
      const std::vector<Call> calls = CallsOf(threads, count, length);
      std::vector<int> times(static_cast<size_t>(count));
      std::vector<int64_t> promised(static_cast<size_t>(threads), -1);
      for (const Call& call : calls) {
        ++times[static_cast<size_t>(call.index)];
        ASSERT_LE(call.run.begin, call.index);
        ASSERT_LT(call.index, call.run.end);
        int64_t& next = promised[static_cast<size_t>(call.worker)];
        if (next >= 0) {
          ASSERT_EQ(call.index, next);
        }
        next = call.next;
      }
      for (const int n : times) ASSERT_EQ(n, 1);
      for (const int64_t next : promised) ASSERT_EQ(next, -1);
    }
  }
}

TEST_P(ForEachAheadTest, AThreadTakesARunWhereTheOthersHaveAsMuchLeft) {
  const int threads = GetParam();
  const int64_t count = 40;
  const int64_t length = 5;
  for (const Call& call : CallsOf(threads, count, length)) {
    const int64_t end = (call.run.begin / length + 1) * length;
    const bool whole = count - end >= (threads - 1) * (end - call.run.begin);
    EXPECT_EQ(call.run.end, whole ? end : call.run.begin + 1);
  }
}

INSTANTIATE_TEST_SUITE_P(Threads, ForEachAheadTest, ::testing::Values(1, 2, 5));

}  // namespace
}  // namespace kf::cpu
