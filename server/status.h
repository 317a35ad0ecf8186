// The one place where statuses cross from absl to gRPC.
#pragma once

#include <grpcpp/support/status.h>

#include <cstddef>

#include "absl/status/status.h"

namespace kf::server {

// Metadata has a limit of 8 KiB by default; a message that quotes a prompt must
// not turn an error into another one.
inline constexpr size_t kMaxStatusMessageBytes = 1024;

// After this long a refused client may try again: the trailer
// grpc-retry-pushback-ms of RESOURCE_EXHAUSTED, which gRPC's own retries obey.
inline constexpr int kRetryPushbackMs = 1000;
inline constexpr char kRetryPushbackKey[] = "grpc-retry-pushback-ms";

// Codes map one to one; the message is cut to the limit at a character border,
// and made UTF-8 where it is not.
grpc::Status ToGrpcStatus(const absl::Status& status);

}  // namespace kf::server
