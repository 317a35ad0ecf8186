// One Generate RPC: the engine's updates joined into one response.
#pragma once

#include <grpcpp/support/server_callback.h>

#include <memory>

#include "absl/status/status.h"
#include "engine/token_sink.h"
#include "server/call.h"
#include "server/engine_ticket.h"

namespace kf::server {

// Lives from Start until gRPC's OnDone and the engine's OnEnd have both come.
// `joined_` and `status_` are the engine thread's until OnEnd calls Finish, and
// gRPC's after it.
class UnaryCall final : public grpc::ServerUnaryReactor,
                        public engine::TokenSink,
                        public std::enable_shared_from_this<UnaryCall> {
 public:
  // Submits; a refusal finishes the RPC. gRPC owns the result until OnDone.
  static UnaryCall* Start(Call call,
                          engine::Request request,
                          grpc::ByteBuffer* response);

  void OnUpdate(engine::Update update) override;
  void OnEnd(const absl::Status& status) override;

  void OnCancel() override;
  void OnDone() override;

 private:
  UnaryCall(Call call, grpc::ByteBuffer* response);

  Call call_;
  EngineTicket ticket_;
  grpc::ByteBuffer* response_;       // gRPC's, valid until OnDone
  std::shared_ptr<UnaryCall> self_;  // gRPC's share, given up in OnDone
  engine::Update joined_;
  absl::Status status_;
};

}  // namespace kf::server
