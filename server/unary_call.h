// One Generate RPC: the engine's updates joined into one response.
#pragma once

#include <grpcpp/support/server_callback.h>

#include <vector>

#include "absl/status/status.h"
#include "server/generate_call.h"
#include "server/pending_updates.h"

namespace kf::server {

// `sequences_` and `status_` are the engine thread's until OnEnd, then the
// thread's that answers until it calls Finish, and gRPC's after that.
class UnaryCall final : public grpc::ServerUnaryReactor, public GenerateCall {
 public:
  // `response` is gRPC's, valid until OnDone.
  UnaryCall(Call call, grpc::ByteBuffer* response);

  void OnUpdate(engine::Update update) override;
  void OnEnd(const absl::Status& status) override;

  void OnCancel() override { Cancel(); }
  void OnDone() override;

 private:
  void Expect(uint32_t sequences, bool at_end) override;
  // Writes the answer and finishes.
  void Answer();

  grpc::ByteBuffer* response_;
  PendingUpdates pending_;
  std::vector<engine::Update> sequences_;  // once all have come
  absl::Status status_;
  engine::Usage usage_;  // the newest, for the log
};

}  // namespace kf::server
