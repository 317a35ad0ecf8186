// The flags of a request's cache: what it is where a request does not say, and
// what a request may ask for.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/request.h"
#include "server/options.h"

namespace kf::server {

// In the order --help shows them.
const std::vector<const char*>& CacheFlagNames();
const std::vector<const char*>& LimitFlagNames();

// The flags that --cache_preset stands for, and their values: name -> text.
// Flags that were set by themselves win. kInvalidArgument: no such preset.
absl::StatusOr<std::vector<std::pair<const char*, const char*>>>
CachePresetFlags();

// From the flags as they stand.
absl::Status FillCache(engine::EngineOptions& options);
absl::Status FillRules(const engine::CacheOptions& cache, RequestRules& rules);

}  // namespace kf::server
