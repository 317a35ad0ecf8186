#include "server/http_server.h"

#include <arpa/inet.h>
#include <civetweb.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <string_view>
#include <thread>

#include "kernels/core/status.h"
#include "server/address.h"

namespace kf::server {
namespace {

void Reply(mg_connection* connection,
           int code,
           const char* reason,
           const std::string& type,
           const std::string& body) {
  mg_printf(connection,
            "HTTP/1.1 %d %s\r\nContent-Type: %s\r\nContent-Length: %zu\r\n"
            "Connection: close\r\n%s\r\n",
            code, reason, type.c_str(), body.size(),
            code == 405 ? "Allow: GET\r\n" : "");
  mg_write(connection, body.data(), body.size());
}

constexpr char kText[] = "text/plain; charset=utf-8";

// The only handler: it answers every path, so that civetweb's own file and CGI
// serving is never reached.
int Handle(mg_connection* connection) {
  const mg_request_info& request = *mg_get_request_info(connection);
  const auto& handlers = *static_cast<const HttpHandlers*>(request.user_data);
  const std::string_view path = request.local_uri;
  if (std::string_view(request.request_method) != "GET") {
    Reply(connection, 405, "Method Not Allowed", kText, "want GET\n");
  } else if (path == "/metrics") {
    Reply(connection, 200, "OK", "text/plain; version=0.0.4; charset=utf-8",
          handlers.metrics());
  } else if (path == "/healthz") {
    Reply(connection, 200, "OK", kText, "ok\n");
  } else if (path == "/readyz") {
    const std::string reason = handlers.not_ready_reason();
    if (reason.empty()) {
      Reply(connection, 200, "OK", kText, "ready\n");
    } else {
      Reply(connection, 503, "Service Unavailable", kText, reason + "\n");
    }
  } else {
    Reply(connection, 404, "Not Found", kText,
          "want /metrics, /healthz or /readyz\n");
  }
  return 1;
}

// civetweb would write to standard error on its own.
int DropMessage(const mg_connection* /*connection*/, const char* /*message*/) {
  return 1;
}

// Connects to our own port on the loopback and leaves.
void Knock(int port) {
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
  if (fd < 0) return;
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  address.sin_port = htons(static_cast<uint16_t>(port));
  // A failure only means that stopping takes its two seconds.
  (void)connect(fd, reinterpret_cast<const sockaddr*>(&address),
                sizeof(address));
  close(fd);
}

}  // namespace

HttpServer::HttpServer(HttpHandlers handlers)
    : handlers_(std::move(handlers)) {}

absl::StatusOr<std::unique_ptr<HttpServer>> HttpServer::Start(
    const std::string& address, HttpHandlers handlers) {
  KF_ASSIGN_OR_RETURN(const HostPort parsed, ParseAddress(address));
  std::unique_ptr<HttpServer> server(new HttpServer(std::move(handlers)));
  mg_init_library(0);
  const std::string listen = parsed.host + ":" + std::to_string(parsed.port);
  // A thread a connection: as many clients may dawdle for their two seconds
  // before a probe waits.
  const char* options[] = {"listening_ports",
                           listen.c_str(),
                           "num_threads",
                           "32",
                           "request_timeout_ms",
                           "2000",
                           "max_request_size",
                           "8192",
                           "enable_keep_alive",
                           "no",
                           nullptr};
  mg_callbacks callbacks = {};
  callbacks.log_message = DropMessage;
  // Not a handler set later: the port is open once mg_start has returned.
  callbacks.begin_request = Handle;
  server->context_ = mg_start(&callbacks, &server->handlers_, options);
  mg_server_port port = {};
  if (server->context_ == nullptr ||
      mg_get_server_ports(server->context_, 1, &port) != 1) {
    return absl::UnavailableError(
        absl::StrCat("--http_address: cannot listen on ", address));
  }
  server->port_ = port.port;
  return server;
}

HttpServer::~HttpServer() {
  if (context_ != nullptr) {
    // civetweb's listener looks at its stop flag every two seconds, or when a
    // connection comes.
    std::atomic<bool> stopped = false;
    std::thread stopper([&] {
      mg_stop(context_);
      stopped = true;
    });
    while (!stopped) {
      Knock(port_);
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
    stopper.join();
  }
  mg_exit_library();
}

}  // namespace kf::server
