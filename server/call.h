// What the two Generate calls share, and small gRPC helpers.
#pragma once

#include <grpcpp/server_context.h>
#include <grpcpp/support/byte_buffer.h>

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/engine.h"
#include "google/protobuf/message.h"
#include "server/rpc_tracker.h"
#include "server/worker.h"

namespace kf::server {

// One Generate RPC that was let in, on its way into the engine.
struct Call {
  grpc::CallbackServerContext* context = nullptr;  // lives until OnDone
  engine::Engine& engine;                          // outlives the call
  Worker& worker;                                  // outlives the call
  RpcTracker::Hold hold;
  std::string request_id = {};  // the client's, echoed; set once it is read
};

// The RPC's deadline on the engine's clock; nothing if it has none.
std::optional<engine::TimePoint> DeadlineOf(
    const grpc::CallbackServerContext& context);

// The status to finish with; sets the trailers that belong to it.
grpc::Status Final(const absl::Status& status,
                   grpc::CallbackServerContext& context);

// kInternal if the message is larger than protobuf can write (2 GiB).
absl::StatusOr<grpc::ByteBuffer> Serialize(
    const google::protobuf::Message& message);

// Whether an answer is so long that writing it would hold up the thread that
// brings it: a millisecond or more.
bool IsLong(const engine::Update& update);

// One line at the end of a Generate RPC.
void LogEnd(const Call& call,
            const absl::Status& status,
            const engine::Usage& usage);

}  // namespace kf::server
