#include "tools/client_lib/http_get.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include "absl/strings/str_cat.h"

namespace kf::tools {
namespace {

class Socket {
 public:
  Socket() : fd_(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {}
  ~Socket() {
    if (fd_ >= 0) close(fd_);
  }
  Socket(const Socket&) = delete;
  Socket& operator=(const Socket&) = delete;
  int fd() const { return fd_; }

 private:
  const int fd_;
};

bool Connect(int fd, int port, double timeout_s) {
  timeval limit = {};
  limit.tv_sec = static_cast<time_t>(timeout_s);
  limit.tv_usec = static_cast<suseconds_t>(
      (timeout_s - static_cast<double>(limit.tv_sec)) * 1e6);
  setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit));
  setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof(limit));
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  address.sin_port = htons(static_cast<uint16_t>(port));
  return connect(fd, reinterpret_cast<const sockaddr*>(&address),
                 sizeof(address)) == 0;
}

}  // namespace

absl::StatusOr<std::string> HttpGet(int port,
                                    const std::string& path,
                                    double timeout_s) {
  const Socket socket;
  const std::string request =
      absl::StrCat("GET ", path, " HTTP/1.1\r\nHost: localhost\r\n\r\n");
  if (!Connect(socket.fd(), port, timeout_s) ||
      send(socket.fd(), request.data(), request.size(), MSG_NOSIGNAL) !=
          static_cast<ssize_t>(request.size())) {
    return absl::UnavailableError(
        absl::StrCat("127.0.0.1:", port, path, ": cannot connect"));
  }
  std::string answer;
  char buffer[16384];
  ssize_t got = 0;
  while ((got = recv(socket.fd(), buffer, sizeof(buffer), 0)) > 0) {
    answer.append(buffer, static_cast<size_t>(got));
  }
  if (got < 0) {
    return absl::UnavailableError(
        absl::StrCat("127.0.0.1:", port, path, ": no answer"));
  }
  return answer;
}

}  // namespace kf::tools
