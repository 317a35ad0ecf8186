#include "kernels/core/thread_pool.h"

#include <atomic>
#include <cstddef>
#include <thread>
#include <vector>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include "kernels/core/cpu_count.h"
#include "kernels/core/mutex.h"
#include "kernels/core/status.h"
#include "kernels/core/thread_name.h"

namespace kf {
namespace {

// About 30 us of pauses: regions of a step follow each other faster than a
// thread can be put to sleep and woken.
constexpr int kSpins = 1000;

// The gate of the current region: epoch (high 32 bits), open flag, and how many
// workers are inside. A worker that comes late finds the gate shut and never
// touches the region, so the caller waits only for those inside.
constexpr uint64_t kOpen = uint64_t{1} << 31;
constexpr uint64_t kInsideMask = kOpen - 1;
constexpr int kEpochShift = 32;

void Pause() {
#if defined(__x86_64__)
  _mm_pause();
#endif
}

}  // namespace

struct ThreadPool::State {
  using Fn = absl::FunctionRef<void(int64_t, int)>;

  alignas(64) std::atomic<int64_t> next{0};
  alignas(64) std::atomic<uint64_t> gate{0};
  alignas(64) std::atomic<int> sleepers{0};  // workers
  std::atomic<bool> stop{false};
  std::atomic<bool> caller_sleeps{false};
  int spins = 0;

  // Written by the caller while no worker is inside; published by the gate.
  const Fn* fn = nullptr;
  int64_t count = 0;

  Mutex mu;  // guards no data: makes sleeping and waking atomic
  CondVar work;
  CondVar done;
  std::vector<std::thread> workers;

  void RunIndices(int worker) {
    for (int64_t i = next.fetch_add(1, std::memory_order_relaxed); i < count;
         i = next.fetch_add(1, std::memory_order_relaxed)) {
      (*fn)(i, worker);
    }
  }

  bool NewRegion(uint64_t seen_epoch) const {
    const uint64_t g = gate.load();
    return stop.load() ||
           ((g & kOpen) != 0 && (g >> kEpochShift) != seen_epoch);
  }

  void WaitForRegion(uint64_t seen_epoch) {
    for (int i = 0; i < spins; ++i) {
      if (NewRegion(seen_epoch)) return;
      Pause();
    }
    MutexLock lock(mu);
    // Sequentially consistent, as are the gate and the caller's look at
    // `sleepers` after opening it: one of the two sees the other.
    sleepers.fetch_add(1);
    while (!NewRegion(seen_epoch)) work.Wait(mu);
    sleepers.fetch_sub(1);
  }

  // False if the region closed first.
  bool Enter(uint64_t* seen_epoch) {
    uint64_t g = gate.load();
    while ((g & kOpen) != 0) {
      if (gate.compare_exchange_weak(g, g + 1)) {
        *seen_epoch = g >> kEpochShift;
        return true;
      }
    }
    return false;
  }

  void Leave() {
    const uint64_t left = gate.fetch_sub(1) - 1;
    if ((left & (kOpen | kInsideMask)) == 0 && caller_sleeps.load()) {
      MutexLock lock(mu);
      done.NotifyOne();
    }
  }

  void WorkerLoop(int worker) {
    uint64_t seen_epoch = 0;
    while (true) {
      WaitForRegion(seen_epoch);
      if (stop.load()) return;
      if (!Enter(&seen_epoch)) continue;
      RunIndices(worker);
      Leave();
    }
  }

  void Open() {
    const uint64_t epoch = ((gate.load() >> kEpochShift) + 1) & 0xFFFFFFFFU;
    gate.store((epoch << kEpochShift) | kOpen);
    if (sleepers.load() > 0) {
      MutexLock lock(mu);
      work.NotifyAll();
    }
  }

  void CloseAndWait() {
    gate.fetch_and(~kOpen);
    for (int i = 0; i < spins; ++i) {
      if ((gate.load() & kInsideMask) == 0) return;
      Pause();
    }
    MutexLock lock(mu);
    caller_sleeps.store(true);
    while ((gate.load() & kInsideMask) != 0) done.Wait(mu);
    caller_sleeps.store(false);
  }
};

ThreadPool::ThreadPool(int threads, bool keep_cores)
    : threads_(threads), state_(std::make_unique<State>()) {
  KF_CHECK(threads >= 1);
  // Spinning on a core that another of our threads waits for only delays it, as
  // does spinning a CPU quota away.
  const bool own_core = threads <= UsableCores();
  state_->spins = own_core ? kSpins : 0;
  state_->workers.reserve(static_cast<size_t>(threads - 1));
  for (int worker = 1; worker < threads; ++worker) {
    state_->workers.emplace_back([state = state_.get(), worker, keep_cores] {
      NameThread("kf-kernels");
      if (keep_cores) KeepOnCore(worker);
      state->WorkerLoop(worker);
    });
  }
}

ThreadPool::~ThreadPool() {
  {
    MutexLock lock(state_->mu);
    state_->stop.store(true);
    state_->work.NotifyAll();
  }
  for (std::thread& worker : state_->workers) worker.join();
}

void ThreadPool::ParallelFor(
    int64_t count, absl::FunctionRef<void(int64_t index, int worker)> fn) {
  if (count <= 1 || threads_ == 1) {
    for (int64_t i = 0; i < count; ++i) fn(i, 0);
    return;
  }
  State& s = *state_;
  s.fn = &fn;
  s.count = count;
  s.next.store(0, std::memory_order_relaxed);
  s.Open();
  s.RunIndices(0);
  s.CloseAndWait();
}

}  // namespace kf
