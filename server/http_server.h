// The HTTP side: /metrics, /healthz, /readyz. GET only, no files, few threads,
// bounded requests; a slow client is cut off.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "absl/status/statusor.h"

struct mg_context;

namespace kf::server {

// What the endpoints answer with. Called on HTTP threads, concurrently.
struct HttpHandlers {
  std::function<std::string()> metrics;  // text exposition format
  // Empty: ready. Otherwise why not ("loading", "draining").
  std::function<std::string()> not_ready_reason;
};

// Thread-safe. Serves from Start until destroyed.
class HttpServer {
 public:
  // `address` is host:port, [v6]:port included; port 0 takes a free one.
  // kInvalidArgument: no such form; kUnavailable: cannot listen there.
  static absl::StatusOr<std::unique_ptr<HttpServer>> Start(
      const std::string& address, HttpHandlers handlers);
  ~HttpServer();
  HttpServer(const HttpServer&) = delete;
  HttpServer& operator=(const HttpServer&) = delete;

  int port() const { return port_; }

 private:
  explicit HttpServer(HttpHandlers handlers);

  HttpHandlers handlers_;
  mg_context* context_ = nullptr;
  int port_ = 0;
};

}  // namespace kf::server
