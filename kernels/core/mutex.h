// std::mutex with clang's thread-safety annotations. std, not absl: the thread
// sanitizer sees through it, and not through Debian's uninstrumented absl.
#pragma once

#include <chrono>
#include <condition_variable>
#include <mutex>

#if defined(__clang__)
#define KF_TSA(x) __attribute__((x))
#else
#define KF_TSA(x)
#endif
#define KF_CAPABILITY(x) KF_TSA(capability(x))
#define KF_SCOPED_CAPABILITY KF_TSA(scoped_lockable)
#define KF_GUARDED_BY(x) KF_TSA(guarded_by(x))
#define KF_REQUIRES(...) KF_TSA(requires_capability(__VA_ARGS__))
#define KF_EXCLUDES(...) KF_TSA(locks_excluded(__VA_ARGS__))
#define KF_ACQUIRE(...) KF_TSA(acquire_capability(__VA_ARGS__))
#define KF_RELEASE(...) KF_TSA(release_capability(__VA_ARGS__))
#define KF_NO_THREAD_SAFETY_ANALYSIS KF_TSA(no_thread_safety_analysis)

namespace kf {

class KF_CAPABILITY("mutex") Mutex {
 public:
  void Lock() KF_ACQUIRE() { mu_.lock(); }
  void Unlock() KF_RELEASE() { mu_.unlock(); }

 private:
  friend class CondVar;
  std::mutex mu_;
};

class KF_SCOPED_CAPABILITY MutexLock {
 public:
  explicit MutexLock(Mutex& mu) KF_ACQUIRE(mu) : mu_(mu) { mu_.Lock(); }
  ~MutexLock() KF_RELEASE() { mu_.Unlock(); }
  MutexLock(const MutexLock&) = delete;
  MutexLock& operator=(const MutexLock&) = delete;

 private:
  Mutex& mu_;
};

// Wait with the lock held; callers loop over their condition.
class CondVar {
 public:
  void Wait(Mutex& mu) KF_REQUIRES(mu) {
    std::unique_lock<std::mutex> lock(mu.mu_, std::adopt_lock);
    cv_.wait(lock);
    lock.release();
  }
  // False on time-out.
  template <typename Rep, typename Period>
  bool WaitFor(Mutex& mu, std::chrono::duration<Rep, Period> timeout)
      KF_REQUIRES(mu) {
    std::unique_lock<std::mutex> lock(mu.mu_, std::adopt_lock);
    const bool notified =
        cv_.wait_for(lock, timeout) == std::cv_status::no_timeout;
    lock.release();
    return notified;
  }
  void NotifyOne() { cv_.notify_one(); }
  void NotifyAll() { cv_.notify_all(); }

 private:
  std::condition_variable cv_;
};

}  // namespace kf
