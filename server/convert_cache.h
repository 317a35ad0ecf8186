// CacheOptions of the wire to the engine's and back.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/cache/layer_profile.h"
#include "engine/request.h"
#include "keyformer/v1/generation.pb.h"

namespace kf::server {

// The cache options on offer, and what an unset field means.
struct CacheOffer {
  engine::CacheOptions defaults;
  // The name of the profile whose weights the defaults have.
  std::string default_profile = "uniform";
  engine::LayerProfiles profiles = {{"uniform", {}}};
  std::vector<engine::CachePolicy> policies = {
      engine::CachePolicy::kFull, engine::CachePolicy::kWindow,
      engine::CachePolicy::kH2O, engine::CachePolicy::kKeyformer,
      engine::CachePolicy::kQuest};
};

// A default_profile that stands for `calibrated` where the model has it (it is
// what keyformer-calibrate writes), else for `uniform`.
inline constexpr std::string_view kAutoProfile = "auto";
inline constexpr std::string_view kCalibratedProfile = "calibrated";

// kInvalidArgument, naming --layer_profile, if the default is neither `auto`
// nor one of `profiles`.
absl::StatusOr<CacheOffer> MakeCacheOffer(
    const engine::CacheOptions& defaults,
    const engine::LayerProfiles& profiles,
    const std::string& default_profile,
    std::vector<engine::CachePolicy> policies);

// Fields that are not set take the offer's defaults where the policy reads
// them. kInvalidArgument: an unknown enum number, a policy or profile that is
// not on offer, a field that the policy does not read (naming both), or two
// fields that exclude each other. Ranges are the engine's to check.
absl::StatusOr<engine::CacheOptions> ToCacheOptions(
    const ::keyformer::v1::CacheOptions& proto, const CacheOffer& offer);

// For ModelInfo: every field that has a default is filled, whichever policy
// reads it.
::keyformer::v1::CacheOptions FromCacheOptions(
    const engine::CacheOptions& options, const std::string& profile);

::keyformer::v1::CachePolicy FromPolicy(engine::CachePolicy policy);

}  // namespace kf::server
