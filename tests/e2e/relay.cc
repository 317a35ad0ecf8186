#include "tests/e2e/relay.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <stdexcept>

namespace kf::testing {
namespace {

sockaddr_in Loopback(int port) {
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  address.sin_port = htons(static_cast<uint16_t>(port));
  return address;
}

void Check(bool good) {
  if (!good) throw std::runtime_error("relay: a socket call failed");
}

// Moves what has come from one socket to the other; false when either is over.
bool Move(int from, int to) {
  char buffer[16384];
  const ssize_t got = recv(from, buffer, sizeof(buffer), 0);
  if (got <= 0) return false;
  for (ssize_t sent = 0; sent < got;) {
    const ssize_t n =
        send(to, buffer + sent, static_cast<size_t>(got - sent), MSG_NOSIGNAL);
    if (n <= 0) return false;
    sent += n;
  }
  return true;
}

}  // namespace

Relay::Relay(int to_port) {
  listener_ = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address = Loopback(0);
  socklen_t size = sizeof(address);
  Check(listener_ >= 0);
  Check(bind(listener_, reinterpret_cast<sockaddr*>(&address), size) == 0);
  Check(listen(listener_, 1) == 0);
  Check(getsockname(listener_, reinterpret_cast<sockaddr*>(&address), &size) ==
        0);
  port_ = ntohs(address.sin_port);
  Check(pipe(wake_) == 0);
  thread_ = std::thread([this, to_port] { Run(to_port); });
}

Relay::~Relay() {
  Cut();
  thread_.join();
  close(wake_[0]);
  close(wake_[1]);
}

std::string Relay::address() const {
  return "127.0.0.1:" + std::to_string(port_);
}

void Relay::Cut() {
  const char byte = 0;
  Check(write(wake_[1], &byte, 1) == 1);
}

void Relay::Run(int to_port) {
  pollfd waiting[2] = {{listener_, POLLIN, 0}, {wake_[0], POLLIN, 0}};
  poll(waiting, 2, -1);
  const int client =
      waiting[1].revents == 0 ? accept(listener_, nullptr, nullptr) : -1;
  // No second connection: a client that tries again is refused.
  close(listener_);
  const int server = socket(AF_INET, SOCK_STREAM, 0);
  const sockaddr_in address = Loopback(to_port);
  bool open = client >= 0 &&
              connect(server, reinterpret_cast<const sockaddr*>(&address),
                      sizeof(address)) == 0;
  while (open) {
    pollfd both[3] = {
        {client, POLLIN, 0}, {server, POLLIN, 0}, {wake_[0], POLLIN, 0}};
    poll(both, 3, -1);
    open = both[2].revents == 0;
    if (open && both[0].revents != 0) open = Move(client, server);
    if (open && both[1].revents != 0) open = Move(server, client);
  }
  if (client >= 0) close(client);
  close(server);
}

}  // namespace kf::testing
