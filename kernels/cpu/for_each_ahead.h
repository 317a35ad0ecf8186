// Spreads work over a pool's threads so that each knows early what it does
// next.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>

#include "absl/functional/function_ref.h"
#include "kernels/core/thread_pool.h"

namespace kf::cpu {

// Consecutive indices that one thread takes together.
struct IndexRun {
  int64_t begin;
  int64_t end;
};

// Runs fn(index, run, next, worker) once for each index in [0, count): `next`
// is what the same thread runs after it, -1 where that is not known. run_end(i)
// is the index after the last of those that belong with i, such as share
// memory: a thread takes all of them from i on, and runs them in order, where
// as many are left for each of the others; else i alone. The last few indices
// are not promised to anybody, so that no thread ends up with two of them while
// another has none.
inline void ForEachAhead(
    ThreadPool& pool,
    int64_t count,
    absl::FunctionRef<int64_t(int64_t)> run_end,
    absl::FunctionRef<void(int64_t, IndexRun, int64_t, int)> fn) {
  std::atomic<int64_t> cursor = 0;
  const int64_t threads = std::min<int64_t>(pool.threads(), count);
  pool.ParallelFor(threads, [&](int64_t /*i*/, int worker) {
    // With fewer than `least` left: nothing.
    const auto take = [&](int64_t least) -> IndexRun {
      int64_t begin = cursor.load(std::memory_order_relaxed);
      int64_t end = 0;
      do {
        if (begin + least > count) return {begin, begin};
        end = run_end(begin);
        if (count - end < (threads - 1) * (end - begin)) end = begin + 1;
      } while (
          !cursor.compare_exchange_weak(begin, end, std::memory_order_relaxed));
      return {begin, end};
    };
    for (IndexRun run = take(1); run.begin < run.end;) {
      IndexRun after = {};
      for (int64_t i = run.begin; i < run.end; ++i) {
        int64_t next = i + 1;
        if (next == run.end) {
          after = take(threads);
          next = after.begin < after.end ? after.begin : -1;
        }
        fn(i, run, next, worker);
      }
      run = after.begin < after.end ? after : take(1);
    }
  });
}

}  // namespace kf::cpu
