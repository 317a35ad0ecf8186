#include "server/stream_call.h"

#include <utility>

#include "server/convert_response.h"
#include "server/status.h"

namespace kf::server {

StreamCall::StreamCall(Call call)
    : call_(std::move(call)), ticket_(call_.engine) {}

StreamCall* StreamCall::Start(Call call, engine::Request request) {
  std::shared_ptr<StreamCall> self(new StreamCall(std::move(call)));
  self->self_ = self;
  auto id = self->call_.engine.Submit(std::move(request), self);
  if (id.ok()) {
    self->ticket_.SetId(*id);
  } else {
    self->OnEnd(id.status());
  }
  return self.get();
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
  engine::Update update;
  absl::Status status;
  bool write = false;
  bool finish = false;
  {
    MutexLock lock(mu_);
    if (writing_ || finishing_) return;
    write = has_pending_ && !broken_;
    finish = ended_;
    if (!write && !finish) return;
    if (write) {
      update = std::exchange(pending_, {});
      has_pending_ = false;
    }
    writing_ = write && !finish;
    finishing_ = finish;
    status = status_;
  }
  if (write) {
    buffer_ =
        Serialize(ToChunk(update, call_.request_id, call_.engine.tokenizer()));
  }
  if (!finish) {
    StartWrite(&buffer_);
  } else if (write) {
    StartWriteAndFinish(&buffer_, {}, Final(status, *call_.context));
  } else {
    Finish(Final(status, *call_.context));
  }
}

}  // namespace kf::server
