// Spreads work over a pool's threads so that each knows early what it does
// next.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>

#include "absl/functional/function_ref.h"
#include "kernels/core/thread_pool.h"

namespace kf::cpu {

// Runs fn(index, next, worker) once for each index in [0, count), in any order:
// `next` is what the same thread runs after it, -1 where that is not known. The
// last few indices are not promised to anybody, so that no thread ends up with
// two of them while another has none.
inline void ForEachAhead(ThreadPool& pool,
                         int64_t count,
                         absl::FunctionRef<void(int64_t, int64_t, int)> fn) {
  std::atomic<int64_t> cursor = 0;
  const int64_t threads = std::min<int64_t>(pool.threads(), count);
  pool.ParallelFor(threads, [&](int64_t /*i*/, int worker) {
    const auto take = [&cursor] {
      return cursor.fetch_add(1, std::memory_order_relaxed);
    };
    for (int64_t index = take(); index < count;) {
      const bool early =
          cursor.load(std::memory_order_relaxed) + threads <= count;
      const int64_t promised = early ? take() : count;
      fn(index, promised < count ? promised : -1, worker);
      index = early ? promised : take();
    }
  });
}

}  // namespace kf::cpu
