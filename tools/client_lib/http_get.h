// The least of an HTTP client: one GET from a server on this machine.
#pragma once

#include <string>

#include "absl/status/statusor.h"

namespace kf::tools {

// The whole answer, head and body, of `path` at 127.0.0.1:port. kUnavailable:
// no connection, or none that lasts `timeout_s` seconds.
absl::StatusOr<std::string> HttpGet(int port,
                                    const std::string& path,
                                    double timeout_s);

}  // namespace kf::tools
