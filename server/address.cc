#include "server/address.h"

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "kernels/core/status.h"

namespace kf::server {

bool HostPort::beyond_loopback() const {
  return host != "localhost" && host != "[::1]" &&
         !absl::StartsWith(host, "127.");
}

absl::StatusOr<HostPort> ParseAddress(const std::string& address) {
  const absl::Status bad = absl::InvalidArgumentError(
      absl::StrCat("\"", address, "\", want host:port with port 0 to 65535"));
  const size_t colon = address.rfind(':');
  if (colon == std::string::npos || colon == 0) return bad;
  HostPort result;
  result.host = address.substr(0, colon);
  const bool bracketed = result.host.front() == '[' &&
                         result.host.back() == ']' && result.host.size() > 2;
  if (result.host.find_first_of(":[] \t,") != std::string::npos && !bracketed) {
    return bad;
  }
  const std::string port = address.substr(colon + 1);
  if (port.empty() || port.find_first_not_of("0123456789") != port.npos ||
      !absl::SimpleAtoi(port, &result.port) || result.port > 65535) {
    return bad;
  }
  return result;
}

}  // namespace kf::server
