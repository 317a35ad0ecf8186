// A TCP relay on the loopback that can be cut: to the server it looks like a
// client whose process was killed.
#pragma once

#include <atomic>
#include <string>
#include <thread>

namespace kf::testing {

// For one connection. Cut and the destructor close both sides at once.
class Relay {
 public:
  explicit Relay(int to_port);
  ~Relay();
  Relay(const Relay&) = delete;
  Relay& operator=(const Relay&) = delete;

  std::string address() const;
  void Cut();

 private:
  void Run(int to_port);

  int listener_ = -1;
  int wake_[2] = {-1, -1};  // a pipe: a byte ends the relay
  int port_ = 0;
  std::thread thread_;
};

}  // namespace kf::testing
