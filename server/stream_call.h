// One GenerateStream RPC: the engine's updates out, one write in flight.
#pragma once

#include <grpcpp/support/server_callback.h>

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/token_sink.h"
#include "kernels/core/mutex.h"
#include "server/call.h"
#include "server/engine_ticket.h"

namespace kf::server {

// Lives from Create until gRPC's OnDone and the engine's OnEnd have both come,
// in either order.
//
// Deltas that arrive while a write is in flight are joined into one chunk, so a
// slow reader costs at most its own answer's size and blocks nobody. The last
// chunk travels with the status. Cancel, client death and deadline end the
// engine request; Finish is called exactly once, after the engine's end.
//
// Thread-safe: OnUpdate and OnEnd come on the engine thread, the reactions on
// gRPC's. gRPC is never called with the lock held: `writing_` and `finishing_`
// say who may call it next.
class StreamCall final : public grpc::ServerWriteReactor<grpc::ByteBuffer>,
                         public engine::TokenSink,
                         public std::enable_shared_from_this<StreamCall> {
 public:
  // gRPC shares in it until OnDone.
  static std::shared_ptr<StreamCall> Create(Call call);
  // Once. An error, or a refusal of the engine's, finishes the RPC.
  void Submit(std::string request_id, absl::StatusOr<engine::Request> request)
      KF_EXCLUDES(mu_);

  void OnUpdate(engine::Update update) override KF_EXCLUDES(mu_);
  void OnEnd(const absl::Status& status) override KF_EXCLUDES(mu_);

  void OnWriteDone(bool ok) override KF_EXCLUDES(mu_);
  void OnCancel() override;
  void OnDone() override;

 private:
  // What is due: a write, the last write, or the finish.
  struct Due {
    bool write = false;
    bool finish = false;
    engine::Update update;  // if write
    absl::Status status;    // if finish
  };

  explicit StreamCall(Call call);
  // Starts whatever is due.
  void Advance() KF_EXCLUDES(mu_);
  void Send(Due due) KF_EXCLUDES(mu_);

  Call call_;
  EngineTicket ticket_;
  std::shared_ptr<StreamCall> self_;  // gRPC's share, given up in OnDone
  grpc::ByteBuffer buffer_;  // of the write in flight; its starter's alone

  Mutex mu_;
  engine::Update pending_ KF_GUARDED_BY(mu_);  // joined, not yet written
  bool has_pending_ KF_GUARDED_BY(mu_) = false;
  bool writing_ KF_GUARDED_BY(mu_) = false;
  bool broken_ KF_GUARDED_BY(mu_) = false;  // a write failed: no more of them
  absl::Status broken_by_ KF_GUARDED_BY(mu_);  // ours; OK: the client's doing
  bool ended_ KF_GUARDED_BY(mu_) = false;      // the engine's end has come
  bool finishing_ KF_GUARDED_BY(mu_) = false;
  absl::Status status_ KF_GUARDED_BY(mu_);     // valid when ended_
  engine::Update summary_ KF_GUARDED_BY(mu_);  // the newest usage, for the log
};

}  // namespace kf::server
