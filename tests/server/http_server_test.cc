#include "server/http_server.h"

#include <atomic>
#include <string>
#include <thread>
#include <vector>

#include "server/address.h"
#include "tests/server/http_client.h"
#include "tests/testing/matchers.h"

namespace kf::server {
namespace {

using ::testing::EndsWith;
using testing::GetHttp;
using ::testing::HasSubstr;
using testing::IsOk;
using testing::SendHttp;
using ::testing::StartsWith;
using testing::StatusIs;

class Http : public ::testing::Test {
 protected:
  void SetUp() override {
    HttpHandlers handlers;
    handlers.metrics = [] { return std::string(200000, 'm'); };
    handlers.not_ready_reason = [this] {
      return ready_ ? std::string() : std::string("loading");
    };
    auto server = HttpServer::Start("127.0.0.1:0", std::move(handlers));
    ASSERT_THAT(server, IsOk());
    server_ = *std::move(server);
    ASSERT_GT(server_->port(), 0);
  }
  std::string Get(const std::string& path) {
    return GetHttp(server_->port(), path);
  }

  std::atomic<bool> ready_ = false;
  std::unique_ptr<HttpServer> server_;
};

TEST_F(Http, AnswersItsThreePaths) {
  const std::string metrics = Get("/metrics");
  EXPECT_THAT(metrics, StartsWith("HTTP/1.1 200 OK"));
  EXPECT_THAT(metrics, HasSubstr("text/plain; version=0.0.4"));
  EXPECT_THAT(metrics, HasSubstr("Content-Length: 200000"));
  EXPECT_THAT(metrics, EndsWith("\r\n\r\n" + std::string(200000, 'm')));
  EXPECT_THAT(Get("/healthz"), StartsWith("HTTP/1.1 200 OK"));
  const std::string loading = Get("/readyz");
  EXPECT_THAT(loading, StartsWith("HTTP/1.1 503"));
  EXPECT_THAT(loading, HasSubstr("loading"));
  ready_ = true;
  EXPECT_THAT(Get("/readyz?verbose"), StartsWith("HTTP/1.1 200 OK"));
}

TEST_F(Http, RefusesTheRest) {
  EXPECT_THAT(Get("/"), StartsWith("HTTP/1.1 404"));
  EXPECT_THAT(Get("/metrics/../../etc/passwd"), HasSubstr("HTTP/1.1 4"));
  const int port = server_->port();
  EXPECT_THAT(SendHttp(port,
                       "POST /metrics HTTP/1.1\r\nHost: x\r\n"
                       "Content-Length: 0\r\n\r\n"),
              StartsWith("HTTP/1.1 405"));
  EXPECT_THAT(SendHttp(port, "nonsense\r\n\r\n"), HasSubstr("400"));
  EXPECT_THAT(SendHttp(port, "GET / HTTP/1.1\r\nX: " +
                                 std::string(100000, 'x') + "\r\n\r\n"),
              ::testing::Not(HasSubstr("HTTP/1.1 200")));
  // Still there.
  EXPECT_THAT(Get("/healthz"), StartsWith("HTTP/1.1 200 OK"));
}

TEST_F(Http, ServesSeveralAtOnce) {
  std::atomic<int> good = 0;
  std::vector<std::thread> clients;
  for (int i = 0; i < 16; ++i) {
    clients.emplace_back([&] {
      if (Get("/healthz").rfind("HTTP/1.1 200", 0) == 0) ++good;
    });
  }
  for (std::thread& client : clients) client.join();
  EXPECT_EQ(good, 16);
}

TEST_F(Http, SilentClientsHoldUpNoProbe) {
  std::vector<std::unique_ptr<testing::SilentClient>> silent;
  for (int i = 0; i < 24; ++i) {
    silent.push_back(std::make_unique<testing::SilentClient>(
        server_->port(), i % 2 == 0 ? "" : "GET /healthz HT"));
  }
  EXPECT_THAT(Get("/healthz"), StartsWith("HTTP/1.1 200 OK"));
  // The probe has not waited until some of them were sent away.
  int connected = 0;
  for (const auto& client : silent) connected += client->connected() ? 1 : 0;
  EXPECT_EQ(connected, 24);
}

TEST_F(Http, PortInUseIsAnError) {
  EXPECT_THAT(
      HttpServer::Start("127.0.0.1:" + std::to_string(server_->port()), {}),
      StatusIs(absl::StatusCode::kUnavailable, "--http_address"));
}

TEST(Address, Forms) {
  EXPECT_EQ(ParseAddress("[::1]:80")->host, "[::1]");
  EXPECT_EQ(ParseAddress("0.0.0.0:0")->port, 0);
  EXPECT_TRUE(ParseAddress("0.0.0.0:1")->beyond_loopback());
  EXPECT_TRUE(ParseAddress("[::]:1")->beyond_loopback());
  EXPECT_FALSE(ParseAddress("127.0.0.1:1")->beyond_loopback());
  EXPECT_FALSE(ParseAddress("localhost:1")->beyond_loopback());
  for (const char* bad : {"", ":", "8001", "a:", ":80", "a:b", "a:-1",
                          "a:65536", "::1:80", "a b:80", "a:80,b:81", "a:+1"}) {
    EXPECT_FALSE(ParseAddress(bad).ok()) << bad;
  }
}

}  // namespace
}  // namespace kf::server
