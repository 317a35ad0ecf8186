// Lets one thread cancel an RPC that another thread is waiting in.
#pragma once

#include <functional>
#include <utility>

#include "kernels/core/mutex.h"

namespace kf::tools {

// Thread-safe. Good for any number of calls, one at a time; once cancelled,
// later calls end at once until Reset.
class CancelToken {
 public:
  void Cancel() {
    const MutexLock lock(mu_);
    cancelled_ = true;
    if (canceller_ != nullptr) canceller_();
  }

  // A call that starts hands in how to cancel it; runs at once if Cancel came
  // first.
  void Attach(std::function<void()> canceller) {
    const MutexLock lock(mu_);
    canceller_ = std::move(canceller);
    if (cancelled_) canceller_();
  }

  // The canceller does not run after this has returned.
  void Detach() {
    const MutexLock lock(mu_);
    canceller_ = nullptr;
  }

  bool cancelled() const {
    const MutexLock lock(mu_);
    return cancelled_;
  }

  void Reset() {
    const MutexLock lock(mu_);
    cancelled_ = false;
  }

 private:
  mutable Mutex mu_;
  std::function<void()> canceller_ KF_GUARDED_BY(mu_);
  bool cancelled_ KF_GUARDED_BY(mu_) = false;
};

}  // namespace kf::tools
