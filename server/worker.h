// Threads for what is too long for gRPC's callback threads (two on a small
// machine, which every RPC needs) and for the engine's.
#pragma once

#include <cstddef>
#include <deque>
#include <functional>
#include <thread>
#include <vector>

#include "kernels/core/mutex.h"

namespace kf::server {

// Thread-safe.
class Worker {
 public:
  // threads >= 1. At most `max_waiting` tasks wait for one.
  Worker(int threads, size_t max_waiting);
  // Runs what still waits.
  ~Worker();
  Worker(const Worker&) = delete;
  Worker& operator=(const Worker&) = delete;

  // Runs `task` on one of the threads, in order of arrival. False: too many
  // wait already, and `task` is dropped.
  bool Post(std::function<void()> task) KF_EXCLUDES(mu_);

 private:
  void Run() KF_EXCLUDES(mu_);

  const size_t max_waiting_;
  Mutex mu_;
  CondVar changed_;
  std::deque<std::function<void()>> waiting_ KF_GUARDED_BY(mu_);
  bool stopping_ KF_GUARDED_BY(mu_) = false;
  std::vector<std::thread> threads_;
};

}  // namespace kf::server
