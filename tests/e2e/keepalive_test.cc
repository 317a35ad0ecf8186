// Pings of an idle connection: gateways send one every 10 s.
#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <stdexcept>
#include <string>
#include <thread>

#include "tests/e2e/harness.h"

namespace kf::testing {
namespace {

// HTTP/2's frames, RFC 9113: a header of 9 bytes (3 of length, type, flags, 4
// of stream), then the payload.
constexpr uint8_t kSettings = 4;
constexpr uint8_t kPing = 6;
constexpr uint8_t kGoAway = 7;
constexpr uint8_t kAck = 1;

struct Frame {
  uint8_t type = 0;
  uint8_t flags = 0;
};

// An HTTP/2 connection that has no stream. gRPC's own client keeps to limits of
// its own; this one pings when it is told to.
class IdleConnection {
 public:
  explicit IdleConnection(int port) {
    sockaddr_in address = {};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    address.sin_port = htons(static_cast<uint16_t>(port));
    if (connect(fd_, reinterpret_cast<const sockaddr*>(&address),
                sizeof(address)) != 0) {
      throw std::runtime_error("cannot connect");
    }
    Send("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n");
    SendFrame(kSettings, 0, "");
  }
  ~IdleConnection() { close(fd_); }
  IdleConnection(const IdleConnection&) = delete;
  IdleConnection& operator=(const IdleConnection&) = delete;

  // Whether the ping was answered: if not, the server has said goodbye.
  bool Ping() {
    SendFrame(kPing, 0, "12345678");
    Frame frame;
    while (Read(frame)) {
      if (frame.type == kPing && frame.flags == kAck) return true;
      if (frame.type == kGoAway) return false;
      if (frame.type == kPing) SendFrame(kPing, kAck, payload_);
      if (frame.type == kSettings && frame.flags != kAck) {
        SendFrame(kSettings, kAck, "");
      }
    }
    return false;
  }

 private:
  void Send(const std::string& bytes) {
    send(fd_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
  }
  void SendFrame(uint8_t type, uint8_t flags, const std::string& payload) {
    std::string frame(9, '\0');
    frame[2] = static_cast<char>(payload.size());
    frame[3] = static_cast<char>(type);
    frame[4] = static_cast<char>(flags);
    Send(frame + payload);
  }
  bool ReadBytes(char* to, size_t count) {
    return recv(fd_, to, count, MSG_WAITALL) == static_cast<ssize_t>(count);
  }
  bool Read(Frame& frame) {
    std::array<char, 9> header = {};
    if (!ReadBytes(header.data(), header.size())) return false;
    size_t length = 0;
    for (size_t i = 0; i < 3; ++i) {
      length = length << 8U | static_cast<uint8_t>(header[i]);
    }
    frame = {static_cast<uint8_t>(header[3]), static_cast<uint8_t>(header[4])};
    payload_.resize(length);
    return ReadBytes(payload_.data(), length);
  }

  const int fd_ = socket(AF_INET, SOCK_STREAM, 0);
  std::string payload_;  // of the frame read last
};

// gRPC closes a connection at its third ping too early, so an interval that
// were taken for too short would show.
TEST(Keepalive, AnIdleConnectionMayPingOftenerThanGatewaysDo) {
  TestServer server;
  server.Start();
  IdleConnection connection(server.server().grpc_port());
  for (int i = 0; i < 5; ++i) {
    EXPECT_TRUE(connection.Ping()) << "ping " << i;
    std::this_thread::sleep_for(std::chrono::milliseconds(1100));
  }
}

TEST(Keepalive, AFloodOfPingsIsEnded) {
  TestServer server;
  server.Start();
  IdleConnection connection(server.server().grpc_port());
  int answered = 0;
  while (answered < 1000 && connection.Ping()) ++answered;
  EXPECT_LT(answered, 10);
  EXPECT_TRUE(RunStream(*server.stub(), TextRequest("hi", 2)).status.ok());
}

}  // namespace
}  // namespace kf::testing
