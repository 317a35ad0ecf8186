#include "server/unary_call.h"

#include <utility>

#include "server/convert_response.h"
#include "server/status.h"

namespace kf::server {

UnaryCall::UnaryCall(Call call, grpc::ByteBuffer* response)
    : call_(std::move(call)), ticket_(call_.engine), response_(response) {}

std::shared_ptr<UnaryCall> UnaryCall::Create(Call call,
                                             grpc::ByteBuffer* response) {
  std::shared_ptr<UnaryCall> self(new UnaryCall(std::move(call), response));
  self->self_ = self;
  return self;
}

void UnaryCall::Submit(std::string request_id,
                       absl::StatusOr<engine::Request> request) {
  call_.request_id = std::move(request_id);
  if (!request.ok()) return OnEnd(request.status());
  const auto id = call_.engine.Submit(*std::move(request), shared_from_this());
  if (!id.ok()) return OnEnd(id.status());
  ticket_.SetId(*id);
}

void UnaryCall::OnUpdate(engine::Update update) {
  MergeUpdate(std::move(update), &joined_);
}

void UnaryCall::OnEnd(const absl::Status& status) {
  status_ = status;
  if (status.ok() && IsLong(joined_) &&
      call_.worker.Post([self = shared_from_this()] { self->Answer(); })) {
    return;
  }
  Answer();
}

void UnaryCall::Answer() {
  if (status_.ok()) {
    auto bytes = Serialize(
        ToResponse(joined_, call_.request_id, call_.engine.tokenizer()));
    if (bytes.ok()) {
      *response_ = *std::move(bytes);
    } else {
      status_ = bytes.status();
    }
  }
  // A client may take its time to read: what is left is for the log.
  engine::Update rest;
  rest.usage = joined_.usage;
  joined_ = std::move(rest);
  Finish(Final(status_, *call_.context));
}

void UnaryCall::OnCancel() { ticket_.Cancel(); }

void UnaryCall::OnDone() {
  LogEnd(call_, status_, joined_);
  // May be the last reference: nothing is touched after it.
  const std::shared_ptr<UnaryCall> last = std::move(self_);
}

}  // namespace kf::server
