// One Generate RPC: the engine's updates joined into one response.
#pragma once

#include <grpcpp/support/server_callback.h>

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/token_sink.h"
#include "server/call.h"
#include "server/engine_ticket.h"

namespace kf::server {

// Lives from Create until gRPC's OnDone and the engine's OnEnd have both come.
// `joined_` and `status_` are the engine thread's until OnEnd, then the
// thread's that answers until it calls Finish, and gRPC's after that.
class UnaryCall final : public grpc::ServerUnaryReactor,
                        public engine::TokenSink,
                        public std::enable_shared_from_this<UnaryCall> {
 public:
  // gRPC shares in it until OnDone.
  static std::shared_ptr<UnaryCall> Create(Call call,
                                           grpc::ByteBuffer* response);
  // Once. An error, or a refusal of the engine's, finishes the RPC.
  void Submit(std::string request_id, absl::StatusOr<engine::Request> request);

  void OnUpdate(engine::Update update) override;
  void OnEnd(const absl::Status& status) override;

  void OnCancel() override;
  void OnDone() override;

 private:
  UnaryCall(Call call, grpc::ByteBuffer* response);
  // Writes the answer and finishes.
  void Answer();

  Call call_;
  EngineTicket ticket_;
  grpc::ByteBuffer* response_;       // gRPC's, valid until OnDone
  std::shared_ptr<UnaryCall> self_;  // gRPC's share, given up in OnDone
  engine::Update joined_;
  absl::Status status_;
};

}  // namespace kf::server
