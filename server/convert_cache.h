// CacheOptions of the wire to the engine's and back.
#pragma once

#include "absl/status/statusor.h"
#include "engine/request.h"
#include "keyformer/v1/generation.pb.h"

namespace kf::server {

// Fields that are not set take `defaults`. kInvalidArgument: an unknown enum
// number, or a field that the policy does not read (naming both);
// kUnimplemented: a feature not built yet, naming the field. Ranges are the
// engine's to check.
absl::StatusOr<engine::CacheOptions> ToCacheOptions(
    const ::keyformer::v1::CacheOptions& proto,
    const engine::CacheOptions& defaults);

// Every field filled, for ModelInfo.
::keyformer::v1::CacheOptions FromCacheOptions(
    const engine::CacheOptions& options);

}  // namespace kf::server
