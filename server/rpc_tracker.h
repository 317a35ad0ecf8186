// Counts our own RPCs: to bound them, answers that nobody reads included, and
// so that a drain can wait for them: gRPC's Shutdown also waits for health
// watches, which never end.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
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
    Hold(Hold&& other) noexcept
        : tracker_(std::exchange(other.tracker_, nullptr)) {}
    Hold& operator=(Hold&&) = delete;
    ~Hold() {
      if (tracker_ != nullptr) tracker_->Release();
    }

   private:
    friend class RpcTracker;
    explicit Hold(RpcTracker& tracker) : tracker_(&tracker) {}

    RpcTracker* tracker_;  // null once moved from
  };

  // At most `limit` holds at once.
  explicit RpcTracker(int64_t limit) : limit_(limit) {}

  // Nothing if the limit is reached.
  std::optional<Hold> TryHold() KF_EXCLUDES(mu_) {
    MutexLock lock(mu_);
    if (count_ >= limit_) return std::nullopt;
    ++count_;
    return Hold(*this);
  }

  int64_t limit() const { return limit_; }

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
  void Release() KF_EXCLUDES(mu_) {
    MutexLock lock(mu_);
    if (--count_ == 0) changed_.NotifyAll();
  }

  const int64_t limit_;
  Mutex mu_;
  CondVar changed_;
  int64_t count_ KF_GUARDED_BY(mu_) = 0;
};

}  // namespace kf::server
