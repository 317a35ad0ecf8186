// Ties one RPC to its engine request, whichever of "the client is gone" and
// "the engine gave it an id" comes first.
#pragma once

#include "engine/engine.h"
#include "kernels/core/mutex.h"

namespace kf::server {

// Thread-safe. The engine outlives it. The engine is never called with the lock
// held.
class EngineTicket {
 public:
  explicit EngineTicket(engine::Engine& engine) : engine_(engine) {}

  // Once, when Submit has returned.
  void SetId(engine::RequestId id) KF_EXCLUDES(mu_) {
    bool cancelled = false;
    {
      MutexLock lock(mu_);
      id_ = id;
      cancelled = cancelled_;
    }
    if (cancelled) engine_.Cancel(id);
  }

  // Any number of times; the engine ends the request within a step.
  void Cancel() KF_EXCLUDES(mu_) {
    engine::RequestId id = 0;
    {
      MutexLock lock(mu_);
      cancelled_ = true;
      id = id_;
    }
    if (id != 0) engine_.Cancel(id);
  }

 private:
  engine::Engine& engine_;
  Mutex mu_;
  engine::RequestId id_ KF_GUARDED_BY(mu_) = 0;
  bool cancelled_ KF_GUARDED_BY(mu_) = false;
};

}  // namespace kf::server
