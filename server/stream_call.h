// One GenerateStream RPC: the engine's updates out, one write in flight.
#pragma once

#include <grpcpp/support/server_callback.h>

#include "absl/status/status.h"
#include "kernels/core/mutex.h"
#include "server/generate_call.h"
#include "server/pending_updates.h"

namespace kf::server {

// Deltas that arrive while a write is in flight are joined into one chunk a
// sequence, so a slow reader costs at most its own answer's size and blocks
// nobody. The last chunk travels with the status. Cancel, client death and
// deadline end the engine request; Finish is called exactly once, after the
// engine's end.
//
// Thread-safe: OnUpdate and OnEnd come on the engine thread, the reactions on
// gRPC's. gRPC is never called with the lock held: `writing_` and `finishing_`
// say who may call it next.
class StreamCall final : public grpc::ServerWriteReactor<grpc::ByteBuffer>,
                         public GenerateCall {
 public:
  explicit StreamCall(Call call);

  void OnUpdate(engine::Update update) override KF_EXCLUDES(mu_);
  void OnEnd(const absl::Status& status) override KF_EXCLUDES(mu_);

  void OnWriteDone(bool ok) override KF_EXCLUDES(mu_);
  void OnCancel() override { Cancel(); }
  void OnDone() override;

 private:
  // What is due: a write, the last write, or the finish.
  struct Due {
    bool write = false;
    bool finish = false;
    engine::Update update;  // if write
    absl::Status status;    // if finish
  };

  void Expect(uint32_t sequences, bool at_end) override KF_EXCLUDES(mu_);
  // Starts whatever is due.
  void Advance() KF_EXCLUDES(mu_);
  void Send(const Due& due) KF_EXCLUDES(mu_);

  grpc::ByteBuffer buffer_;  // of the write in flight; its starter's alone

  Mutex mu_;
  PendingUpdates pending_ KF_GUARDED_BY(mu_);
  bool at_end_ KF_GUARDED_BY(mu_) = false;  // nothing is sent before OnEnd
  bool writing_ KF_GUARDED_BY(mu_) = false;
  bool broken_ KF_GUARDED_BY(mu_) = false;  // a write failed: no more of them
  absl::Status broken_by_ KF_GUARDED_BY(mu_);  // ours; OK: the client's doing
  bool ended_ KF_GUARDED_BY(mu_) = false;      // the engine's end has come
  bool finishing_ KF_GUARDED_BY(mu_) = false;
  absl::Status status_ KF_GUARDED_BY(mu_);  // valid when ended_
  engine::Usage usage_ KF_GUARDED_BY(mu_);  // the newest, for the log
};

}  // namespace kf::server
