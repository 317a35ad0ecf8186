// A fixed set of worker threads for data-parallel loops.
//
// One region at a time: ParallelFor hands out indices dynamically and returns
// when all are done. Which thread runs an index is not fixed, so a kernel's
// result must not depend on it (every output is written by exactly one index).
#pragma once

#include <cstdint>
#include <memory>

#include "absl/functional/function_ref.h"

namespace kf {

class ThreadPool {
 public:
  // `threads` >= 1 counts the caller: threads - 1 workers are started. With
  // `keep_cores` worker i stays on the process's core i (KeepOnCore of
  // cpu_count.h), and the caller, core 0, is for its owner to keep.
  explicit ThreadPool(int threads, bool keep_cores = false);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int threads() const { return threads_; }

  // Calls fn(index, worker) once for each index in [0, count); worker is in
  // [0, threads()) and distinct for calls that run at the same time, so it may
  // index scratch memory. The caller takes part. Not reentrant, and called from
  // one thread at a time (the engine thread). fn must not throw. Allocates
  // nothing; sleeping workers are woken once, together.
  void ParallelFor(int64_t count,
                   absl::FunctionRef<void(int64_t index, int worker)> fn);

 private:
  struct State;
  int threads_;
  std::unique_ptr<State> state_;
};

}  // namespace kf
