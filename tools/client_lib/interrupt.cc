#include "tools/client_lib/interrupt.h"

#include <pthread.h>
#include <unistd.h>

#include <utility>

#include "kernels/core/status.h"
#include "tools/client_lib/exit_code.h"

namespace kf::tools {

Interrupt::Interrupt() : signals_{} {
  KF_CHECK(sigemptyset(&signals_) == 0);
  KF_CHECK(sigaddset(&signals_, SIGINT) == 0);
  KF_CHECK(sigaddset(&signals_, SIGTERM) == 0);
  KF_CHECK(pthread_sigmask(SIG_BLOCK, &signals_, nullptr) == 0);
  thread_ = std::thread([this] { Watch(); });
}

Interrupt::~Interrupt() {
  {
    const MutexLock lock(mu_);
    stopping_ = true;
  }
  pthread_kill(thread_.native_handle(), SIGTERM);  // ends its sigwait
  thread_.join();
}

void Interrupt::Arm(std::function<void()> callback) {
  const MutexLock lock(mu_);
  callback_ = std::move(callback);
  fired_ = false;
}

void Interrupt::Disarm() {
  const MutexLock lock(mu_);
  callback_ = nullptr;
}

bool Interrupt::Fired() const {
  const MutexLock lock(mu_);
  return fired_;
}

void Interrupt::Watch() {
  while (true) {
    int signal = 0;
    if (sigwait(&signals_, &signal) != 0) continue;
    const MutexLock lock(mu_);
    if (stopping_) return;
    // _exit: another thread may be inside a blocking read of standard input.
    if (callback_ == nullptr) _exit(kExitInterrupted);
    fired_ = true;
    callback_();
  }
}

}  // namespace kf::tools
