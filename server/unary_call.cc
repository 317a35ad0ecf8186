#include "server/unary_call.h"

#include <algorithm>
#include <utility>

namespace kf::server {

UnaryCall::UnaryCall(Call call, grpc::ByteBuffer* response)
    : GenerateCall(std::move(call)), response_(response) {}

void UnaryCall::Expect(uint32_t sequences, bool /*at_end*/) {
  pending_ = PendingUpdates(sequences);
}

void UnaryCall::OnUpdate(engine::Update update) {
  pending_.Add(std::move(update));
}

void UnaryCall::OnEnd(const absl::Status& status) {
  status_ = status;
  if (status.ok()) pending_.Close();
  while (!pending_.empty()) {
    sequences_.push_back(pending_.Take());
    const engine::Usage& usage = sequences_.back().usage;
    if (HasUsage(sequences_.back())) usage_ = usage;
  }
  const bool is_long =
      std::any_of(sequences_.begin(), sequences_.end(),
                  [](const engine::Update& update) { return IsLong(update); });
  const auto self = std::static_pointer_cast<UnaryCall>(shared_from_this());
  if (status.ok() && is_long && rpc_.worker.Post([self] { self->Answer(); })) {
    return;
  }
  Answer();
}

void UnaryCall::Answer() {
  if (status_.ok()) {
    auto bytes = Serialize(ToResponse(sequences_, response_context()));
    if (bytes.ok()) {
      *response_ = *std::move(bytes);
    } else {
      status_ = bytes.status();
    }
  }
  // A client may take its time to read; nothing needs them any more.
  std::vector<engine::Update>().swap(sequences_);
  Finish(Final(status_, *rpc_.context));
}

void UnaryCall::OnDone() {
  LogEnd(rpc_, status_, usage_);
  // May be the last reference: nothing is touched after it.
  const auto last = TakeShare();
}

}  // namespace kf::server
