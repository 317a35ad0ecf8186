// A connection to a Keyformer server: every RPC as a blocking call that answers
// with an absl::Status (the codes are gRPC's). Only client.cc and
// health_check.* of the tools include gRPC.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "keyformer/v1/generation.pb.h"
#include "tools/client_lib/cancel_token.h"

namespace kf::tools {

namespace pb = ::keyformer::v1;

struct ConnectOptions {
  std::string server = "127.0.0.1:8001";  // host:port
  std::string tls_ca;      // PEM file; empty: no TLS unless tls_cert is set
  std::string tls_cert;    // PEM file, for mutual TLS; needs tls_key
  std::string tls_key;     // PEM file
  std::string token_file;  // first line is sent as the bearer token
  double wait_s = 0.0;     // how long to keep trying a server that is not there
};

struct CallOptions {
  double timeout_s = 0.0;         // deadline of the RPC; 0: none
  CancelToken* cancel = nullptr;  // may be null
};

// Called for each chunk; false cancels the stream.
using ChunkFn = std::function<bool(const pb::GenerateChunk&)>;

// Thread-safe: calls may run on several threads at once.
class Client {
 public:
  // kInvalidArgument: an option or a file it names is wrong. kUnavailable: no
  // connection; without wait_s the first refusal is final.
  static absl::StatusOr<std::unique_ptr<Client>> Connect(
      const ConnectOptions& options);
  ~Client();
  Client(const Client&) = delete;
  Client& operator=(const Client&) = delete;

  absl::Status Stream(const pb::GenerateRequest& request,
                      const CallOptions& call,
                      const ChunkFn& on_chunk);
  absl::StatusOr<pb::TokenizeResponse> Tokenize(
      const pb::TokenizeRequest& request, const CallOptions& call);
  absl::StatusOr<pb::DetokenizeResponse> Detokenize(
      const pb::DetokenizeRequest& request, const CallOptions& call);
  absl::StatusOr<pb::ModelInfoResponse> ModelInfo(
      const pb::ModelInfoRequest& request, const CallOptions& call);
  absl::StatusOr<pb::GetLoadResponse> GetLoad(const CallOptions& call);

  // grpc.health.v1.Health/Check: "SERVING", "NOT_SERVING" or "UNKNOWN".
  absl::StatusOr<std::string> CheckHealth(const std::string& service,
                                          const CallOptions& call);

 private:
  struct Impl;
  explicit Client(std::unique_ptr<Impl> impl);

  const std::unique_ptr<Impl> impl_;
};

// "INVALID_ARGUMENT: sampling.top_p: 2, want [0, 1]".
std::string StatusText(const absl::Status& status);

}  // namespace kf::tools
