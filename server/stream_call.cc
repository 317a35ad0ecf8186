#include "server/stream_call.h"

#include <utility>

namespace kf::server {

StreamCall::StreamCall(Call call) : GenerateCall(std::move(call)) {}

void StreamCall::Expect(uint32_t sequences, bool at_end) {
  const MutexLock lock(mu_);
  at_end_ = at_end;
  pending_ = PendingUpdates(sequences);
}

void StreamCall::OnUpdate(engine::Update update) {
  bool last = false;
  {
    MutexLock lock(mu_);
    pending_.Add(std::move(update));
    last = at_end_ || pending_.complete();
  }
  // OnEnd follows the last update at once and sends both in one go. It alone
  // knows which beam is the last.
  if (!last) Advance();
}

void StreamCall::OnEnd(const absl::Status& status) {
  {
    MutexLock lock(mu_);
    ended_ = true;
    if (status.ok()) pending_.Close();
    status_ = status;
  }
  Advance();
}

void StreamCall::OnWriteDone(bool ok) {
  {
    MutexLock lock(mu_);
    writing_ = false;
    if (!ok) broken_ = true;
  }
  if (!ok) Cancel();
  Advance();
}

void StreamCall::OnDone() {
  {
    MutexLock lock(mu_);
    LogEnd(rpc_, status_, usage_);
  }
  // May be the last reference: nothing is touched after it.
  const auto last = TakeShare();
}

void StreamCall::Advance() {
  Due due;
  {
    MutexLock lock(mu_);
    if (writing_ || finishing_) return;
    due.write = !pending_.empty() && !broken_;
    if (due.write) {
      due.update = pending_.Take();
      if (HasUsage(due.update)) usage_ = due.update.usage;
    }
    due.finish = ended_ && (pending_.empty() || broken_);
    if (!due.write && !due.finish) return;
    writing_ = due.write && !due.finish;
    finishing_ = due.finish;
    if (due.finish && !broken_by_.ok()) status_ = broken_by_;
    due.status = status_;
  }
  if (due.write && IsLong(due.update)) {
    const auto kept = std::make_shared<const Due>(std::move(due));
    const auto self = std::static_pointer_cast<StreamCall>(shared_from_this());
    if (!rpc_.worker.Post([self, kept] { self->Send(*kept); })) Send(*kept);
    return;
  }
  Send(due);
}

void StreamCall::Send(const Due& due) {
  absl::Status written;
  if (due.write) {
    auto bytes = Serialize(ToChunk(due.update, response_context()));
    written = bytes.status();
    if (bytes.ok()) buffer_ = *std::move(bytes);
  }
  if (!written.ok()) {
    {
      MutexLock lock(mu_);
      writing_ = false;
      broken_ = true;
      broken_by_ = written;
      finishing_ = false;
    }
    // Finishes if the end has come, else waits for it.
    Advance();
  } else if (!due.finish) {
    StartWrite(&buffer_);
  } else if (due.write) {
    StartWriteAndFinish(&buffer_, {}, Final(due.status, *rpc_.context));
  } else {
    Finish(Final(due.status, *rpc_.context));
  }
}

}  // namespace kf::server
