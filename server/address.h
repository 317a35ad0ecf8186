// host:port as flags spell it.
#pragma once

#include <string>

#include "absl/status/statusor.h"

namespace kf::server {

struct HostPort {
  std::string host;  // a name, an IPv4, or an IPv6 address in brackets
  int port = 0;      // 0: any free one
  // False only where every packet stays on this machine.
  bool beyond_loopback() const;
};

// kInvalidArgument: "127.0.0.1, want host:port".
absl::StatusOr<HostPort> ParseAddress(const std::string& address);

}  // namespace kf::server
