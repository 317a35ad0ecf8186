// What a request's cache held, as a wire message. Free of gRPC; thread-safe.
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "engine/request.h"
#include "engine/request_validation.h"
#include "keyformer/v1/generation.pb.h"

namespace kf::server {

// `detail` is kSummary or kFull.
::keyformer::v1::CacheReport ToCacheReport(const engine::CacheReport& report,
                                           engine::CacheReportDetail detail);

// What bounds a report's size, and the bound.
struct ReportLimits {
  int32_t kv_heads = 0;
  engine::RequestLimits request;  // as the engine's
  uint64_t max_bytes = 0;
};

// kInvalidArgument if the request's FULL reports, of all its sequences, might
// be longer than max_bytes. Other details are in proportion to the prompt, and
// pass. A request that is itself invalid is the engine's to refuse, and passes.
absl::Status CheckReportSize(const engine::Request& request,
                             const ReportLimits& limits);

}  // namespace kf::server
