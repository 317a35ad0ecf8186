// The least of an HTTP client: sends bytes, returns all that comes back.
#pragma once

#include <string>

namespace kf::testing {

// To 127.0.0.1:port; reads to the end of the connection.
std::string SendHttp(int port, const std::string& request);
// A connection that has sent `bytes` and says no more.
class SilentClient {
 public:
  SilentClient(int port, const std::string& bytes);
  ~SilentClient();
  SilentClient(const SilentClient&) = delete;
  SilentClient& operator=(const SilentClient&) = delete;
  bool connected() const;  // the server has not closed it

 private:
  int fd_;
};

// A GET of `path`; the whole answer.
std::string GetHttp(int port, const std::string& path);

}  // namespace kf::testing
