#include "server/worker.h"

#include <utility>

#include "kernels/core/thread_name.h"

namespace kf::server {

Worker::Worker(int threads, size_t max_waiting) : max_waiting_(max_waiting) {
  for (int i = 0; i < threads; ++i) {
    threads_.emplace_back([this] {
      NameThread("kf-worker");
      Run();
    });
  }
}

Worker::~Worker() {
  {
    MutexLock lock(mu_);
    stopping_ = true;
    changed_.NotifyAll();
  }
  for (std::thread& thread : threads_) thread.join();
}

bool Worker::Post(std::function<void()> task) {
  MutexLock lock(mu_);
  if (waiting_.size() >= max_waiting_) return false;
  waiting_.push_back(std::move(task));
  changed_.NotifyAll();
  return true;
}

void Worker::Run() {
  for (;;) {
    std::function<void()> task;
    {
      MutexLock lock(mu_);
      while (waiting_.empty() && !stopping_) changed_.Wait(mu_);
      if (waiting_.empty()) return;
      task = std::move(waiting_.front());
      waiting_.pop_front();
    }
    task();
  }
}

}  // namespace kf::server
