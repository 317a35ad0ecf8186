// The least of an HTTP client: sends bytes, returns all that comes back.
#pragma once

#include <string>

namespace kf::testing {

// To 127.0.0.1:port; reads to the end of the connection.
std::string SendHttp(int port, const std::string& request);
// A GET of `path`; the whole answer.
std::string GetHttp(int port, const std::string& path);

}  // namespace kf::testing
