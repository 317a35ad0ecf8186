#include "tests/server/http_client.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <stdexcept>

namespace kf::testing {
namespace {

int Connect(int port) {
  const int fd = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  address.sin_port = htons(static_cast<uint16_t>(port));
  if (fd < 0 || connect(fd, reinterpret_cast<const sockaddr*>(&address),
                        sizeof(address)) != 0) {
    throw std::runtime_error("cannot connect");
  }
  return fd;
}

// The server may close before it has read everything: not our failure.
void SendAll(int fd, const std::string& bytes) {
  size_t sent = 0;
  while (sent < bytes.size()) {
    const ssize_t n =
        send(fd, bytes.data() + sent, bytes.size() - sent, MSG_NOSIGNAL);
    if (n <= 0) break;
    sent += static_cast<size_t>(n);
  }
}

}  // namespace

SilentClient::SilentClient(int port, const std::string& bytes)
    : fd_(Connect(port)) {
  SendAll(fd_, bytes);
}

SilentClient::~SilentClient() { close(fd_); }

bool SilentClient::connected() const {
  char byte = 0;
  return recv(fd_, &byte, 1, MSG_DONTWAIT | MSG_PEEK) < 0 && errno == EAGAIN;
}

std::string SendHttp(int port, const std::string& request) {
  const int fd = Connect(port);
  SendAll(fd, request);
  std::string answer;
  char buffer[4096];
  for (ssize_t n = 0; (n = recv(fd, buffer, sizeof(buffer), 0)) > 0;) {
    answer.append(buffer, static_cast<size_t>(n));
  }
  close(fd);
  return answer;
}

std::string GetHttp(int port, const std::string& path) {
  return SendHttp(port, "GET " + path + " HTTP/1.1\r\nHost: x\r\n\r\n");
}

}  // namespace kf::testing
