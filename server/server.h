// The process's parts put together: gRPC, HTTP, metrics, the engine.
#pragma once

#include <functional>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/engine.h"
#include "server/options.h"

namespace kf::server {

// Makes the engine; tests put their own in.
using EngineFactory =
    std::function<absl::StatusOr<std::unique_ptr<engine::Engine>>(
        const engine::EngineOptions&,
        const engine::Clock&,
        engine::EngineObserver*)>;

// States: loading (health "" and /healthz answer, RPCs are UNAVAILABLE) ->
// serving -> draining (new requests are UNAVAILABLE) -> stopped.
// Start, WaitLoaded, Drain and Reload: one thread at a time; the rest is
// thread-safe.
class Server {
 public:
  // Listens, then loads the model on a thread of its own and calls `loaded`
  // there with the outcome (may be null). kUnavailable: cannot listen;
  // kInvalidArgument: TLS or token files.
  static absl::StatusOr<std::unique_ptr<Server>> Start(
      const ServerOptions& options,
      std::function<void(const absl::Status&)> loaded = nullptr,
      EngineFactory factory = nullptr);
  // Stops at once what Drain has not. Waits for a load that is still running.
  ~Server();
  Server(const Server&) = delete;
  Server& operator=(const Server&) = delete;

  // Blocks until the model is loaded and warmed, or cannot be.
  absl::Status WaitLoaded();
  // True while the load is neither done nor failed.
  bool loading() const;

  // Flips health, refuses new requests, gives running ones
  // options.drain_timeout, ends the rest with UNAVAILABLE, and stops gRPC. An
  // open health watch does not hold it up. Idempotent.
  void Drain();
  // Reads the token file again and checks the TLS files; logs what it finds.
  void Reload();

  int grpc_port() const;
  int http_port() const;  // 0: no HTTP
  // Null until loaded.
  engine::Engine* engine() const;

 private:
  Server();
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace kf::server
