#include "server/call.h"

#include <spdlog/spdlog.h>

#include <chrono>
#include <cstdint>

#include "kernels/core/status.h"
#include "server/log.h"
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

absl::StatusOr<grpc::ByteBuffer> Serialize(
    const google::protobuf::Message& message) {
  std::string bytes;
  if (message.ByteSizeLong() > INT32_MAX ||
      !message.SerializeToString(&bytes)) {
    return absl::InternalError("the answer is too long to be sent");
  }
  const grpc::Slice slice(bytes);
  return grpc::ByteBuffer(&slice, 1);
}

bool IsLong(const engine::Update& update) {
  constexpr size_t kLongEntries = 4096;
  size_t entries = update.token_ids.size() / 16;
  for (const auto* list : {&update.logprobs, &update.prompt_logprobs}) {
    // Each has as many alternatives as the first.
    if (list->empty()) continue;
    entries += list->size() * (1 + list->front().top.size());
  }
  if (update.cache_report.has_value()) {
    entries += update.cache_report->kept_at_end.holders.size() / 16;
    for (const auto* state :
         {&update.cache_report->after_prompt, &update.cache_report->at_end}) {
      // Every head has as many as the others of its layer.
      for (const auto& layer : *state) {
        if (layer.empty()) continue;
        entries += layer.size() * layer.front().positions.size() / 16;
      }
    }
  }
  return entries > kLongEntries;
}

void LogEnd(const Call& call,
            const absl::Status& status,
            const engine::Usage& usage) {
  spdlog::info(
      "request id=\"{}\" peer={} status={} prompt_tokens={} "
      "generated_tokens={} queue_ms={:.1f} prefill_ms={:.1f} decode_ms={:.1f}",
      EscapeJson(call.request_id), call.context->peer(),
      absl::StatusCodeToString(status.code()), usage.prompt_tokens,
      usage.generated_tokens, usage.queue_ms, usage.prefill_ms,
      usage.decode_ms);
}

}  // namespace kf::server
