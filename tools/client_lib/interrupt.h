// Ctrl-C and SIGTERM as a callback on an ordinary thread, where cancelling an
// RPC is allowed (it is not in a signal handler).
#pragma once

#include <csignal>
#include <functional>
#include <thread>

#include "kernels/core/mutex.h"

namespace kf::tools {

// One per process, made before any other thread so that all of them inherit the
// blocked mask. While a callback is armed a signal calls it; with none armed it
// ends the process with exit code 130. Thread-safe.
class Interrupt {
 public:
  Interrupt();
  ~Interrupt();
  Interrupt(const Interrupt&) = delete;
  Interrupt& operator=(const Interrupt&) = delete;

  // `callback` runs on the watching thread, once for each signal, and never
  // after Disarm has returned.
  void Arm(std::function<void()> callback);
  void Disarm();

  // Whether a signal came since the last Arm.
  bool Fired() const;

 private:
  void Watch();

  sigset_t signals_;
  mutable Mutex mu_;
  std::function<void()> callback_ KF_GUARDED_BY(mu_);
  bool fired_ KF_GUARDED_BY(mu_) = false;
  bool stopping_ KF_GUARDED_BY(mu_) = false;
  std::thread thread_;
};

}  // namespace kf::tools
