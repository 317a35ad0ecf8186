#include "server/unary_call.h"

#include <utility>

#include "server/convert_response.h"
#include "server/status.h"

namespace kf::server {

UnaryCall::UnaryCall(Call call, grpc::ByteBuffer* response)
    : call_(std::move(call)), ticket_(call_.engine), response_(response) {}

UnaryCall* UnaryCall::Start(Call call,
                            engine::Request request,
                            grpc::ByteBuffer* response) {
  std::shared_ptr<UnaryCall> self(new UnaryCall(std::move(call), response));
  self->self_ = self;
  auto id = self->call_.engine.Submit(std::move(request), self);
  if (id.ok()) {
    self->ticket_.SetId(*id);
  } else {
    self->OnEnd(id.status());
  }
  return self.get();
}

void UnaryCall::OnUpdate(engine::Update update) {
  MergeUpdate(std::move(update), &joined_);
}

void UnaryCall::OnEnd(const absl::Status& status) {
  status_ = status;
  if (status.ok()) {
    *response_ = Serialize(
        ToResponse(joined_, call_.request_id, call_.engine.tokenizer()));
  }
  Finish(Final(status, *call_.context));
}

void UnaryCall::OnCancel() { ticket_.Cancel(); }

void UnaryCall::OnDone() {
  LogEnd(call_, status_, joined_);
  // May be the last reference: nothing is touched after it.
  const std::shared_ptr<UnaryCall> last = std::move(self_);
}

}  // namespace kf::server
