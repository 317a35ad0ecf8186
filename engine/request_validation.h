// Checks a request against the model and the limits, and fixes its sizes.
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/cache/request_sizes.h"
#include "engine/request.h"

namespace kf::engine {

struct RequestLimits {
  int32_t vocabulary = 0;
  int32_t context_tokens = 0;
  int32_t layers = 0;
  uint32_t default_max_new_tokens = 256;
  uint32_t max_top_logprobs = 64;
  uint32_t max_stops = 16;         // strings and ids, each
  uint32_t max_stop_bytes = 1024;  // of one string
  uint32_t max_logit_bias = 1024;  // entries
};

// kInvalidArgument: "sampling.top_p: 1.5, want 0 <= top_p <= 1".
absl::StatusOr<RequestSizes> ValidateRequest(const Request& request,
                                             const RequestLimits& limits);

}  // namespace kf::engine
