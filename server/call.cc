#include "server/call.h"

#include <spdlog/spdlog.h>

#include <chrono>

#include "server/status.h"

namespace kf::server {

std::optional<engine::TimePoint> DeadlineOf(
    const grpc::CallbackServerContext& context) {
  const std::chrono::system_clock::time_point deadline = context.deadline();
  if (deadline == std::chrono::system_clock::time_point::max()) return {};
  const auto left = deadline - std::chrono::system_clock::now();
  // Farther than this is none at all, and must not overflow.
  if (left > std::chrono::hours(24 * 365)) return {};
  return std::chrono::steady_clock::now() + left;
}

grpc::Status Final(const absl::Status& status,
                   grpc::CallbackServerContext& context) {
  if (status.code() == absl::StatusCode::kResourceExhausted) {
    context.AddTrailingMetadata(kRetryPushbackKey,
                                std::to_string(kRetryPushbackMs));
  }
  return ToGrpcStatus(status);
}

grpc::ByteBuffer Serialize(const google::protobuf::Message& message) {
  const grpc::Slice slice(message.SerializeAsString());
  return {&slice, 1};
}

void LogEnd(const Call& call,
            const absl::Status& status,
            const engine::Update& last) {
  const engine::Usage& usage = last.usage;
  spdlog::info(
      "request id=\"{}\" peer={} status={} prompt_tokens={} "
      "generated_tokens={} queue_ms={:.1f} prefill_ms={:.1f} decode_ms={:.1f}",
      call.request_id, call.context->peer(),
      absl::StatusCodeToString(status.code()), usage.prompt_tokens,
      usage.generated_tokens, usage.queue_ms, usage.prefill_ms,
      usage.decode_ms);
}

}  // namespace kf::server
