#include "server/stream_call.h"

#include <utility>

#include "server/convert_response.h"
#include "server/status.h"

namespace kf::server {

StreamCall::StreamCall(Call call)
    : call_(std::move(call)), ticket_(call_.engine) {}

std::shared_ptr<StreamCall> StreamCall::Create(Call call) {
  std::shared_ptr<StreamCall> self(new StreamCall(std::move(call)));
  self->self_ = self;
  return self;
}

void StreamCall::Submit(std::string request_id,
                        absl::StatusOr<engine::Request> request) {
  call_.request_id = std::move(request_id);
  if (!request.ok()) return OnEnd(request.status());
  const auto id = call_.engine.Submit(*std::move(request), shared_from_this());
  if (!id.ok()) return OnEnd(id.status());
  ticket_.SetId(*id);
}

void StreamCall::OnUpdate(engine::Update update) {
  const bool last = update.finish_reason != engine::FinishReason::kNotFinished;
  {
    MutexLock lock(mu_);
    if (update.first || last) summary_.usage = update.usage;
    MergeUpdate(std::move(update), &pending_);
    has_pending_ = true;
  }
  // OnEnd follows the last update at once and sends both in one go.
  if (!last) Advance();
}

void StreamCall::OnEnd(const absl::Status& status) {
  {
    MutexLock lock(mu_);
    ended_ = true;
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
  if (!ok) ticket_.Cancel();
  Advance();
}

void StreamCall::OnCancel() { ticket_.Cancel(); }

void StreamCall::OnDone() {
  {
    MutexLock lock(mu_);
    LogEnd(call_, status_, summary_);
  }
  // May be the last reference: nothing is touched after it.
  const std::shared_ptr<StreamCall> last = std::move(self_);
}

void StreamCall::Advance() {
  Due due;
  {
    MutexLock lock(mu_);
    if (writing_ || finishing_) return;
    due.write = has_pending_ && !broken_;
    due.finish = ended_;
    if (!due.write && !due.finish) return;
    if (due.write) {
      due.update = std::exchange(pending_, {});
      has_pending_ = false;
    }
    writing_ = due.write && !due.finish;
    finishing_ = due.finish;
    if (due.finish && !broken_by_.ok()) status_ = broken_by_;
    due.status = status_;
  }
  if (due.write && IsLong(due.update)) {
    const auto kept = std::make_shared<Due>(std::move(due));
    if (call_.worker.Post([self = shared_from_this(), kept] {
          self->Send(std::move(*kept));
        })) {
      return;
    }
    due = std::move(*kept);
  }
  Send(std::move(due));
}

void StreamCall::Send(Due due) {
  absl::Status written;
  if (due.write) {
    auto bytes = Serialize(
        ToChunk(due.update, call_.request_id, call_.engine.tokenizer()));
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
    StartWriteAndFinish(&buffer_, {}, Final(due.status, *call_.context));
  } else {
    Finish(Final(due.status, *call_.context));
  }
}

}  // namespace kf::server
