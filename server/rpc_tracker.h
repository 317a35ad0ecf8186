// Counts our own RPCs, so that a drain can wait for them: gRPC's Shutdown also
// waits for health watches, which never end.
#pragma once

#include <chrono>
#include <utility>

#include "engine/clock.h"
#include "kernels/core/mutex.h"

namespace kf::server {

// Thread-safe; outlives its holds.
class RpcTracker {
 public:
  // Counts as one RPC while it lives.
  class Hold {
   public:
    explicit Hold(RpcTracker& tracker) : tracker_(&tracker) { tracker.Add(1); }
    Hold(Hold&& other) noexcept
        : tracker_(std::exchange(other.tracker_, nullptr)) {}
    Hold& operator=(Hold&&) = delete;
    ~Hold() {
      if (tracker_ != nullptr) tracker_->Add(-1);
    }

   private:
    RpcTracker* tracker_;  // null once moved from
  };

  // True once no RPC is left; false after `timeout`.
  bool WaitNone(engine::Duration timeout) KF_EXCLUDES(mu_) {
    const auto end = std::chrono::steady_clock::now() + timeout;
    MutexLock lock(mu_);
    while (count_ > 0) {
      const auto left = end - std::chrono::steady_clock::now();
      if (left <= engine::Duration::zero()) return false;
      changed_.WaitFor(mu_, left);
    }
    return true;
  }

 private:
  void Add(int change) KF_EXCLUDES(mu_) {
    MutexLock lock(mu_);
    count_ += change;
    if (count_ == 0) changed_.NotifyAll();
  }

  Mutex mu_;
  CondVar changed_;
  int count_ KF_GUARDED_BY(mu_) = 0;
};

}  // namespace kf::server
