// Named shares of the cache budget by layer, in a JSON file beside the model:
//
//   {"profiles": {"retrieval": {"weights": [0.6, ...], "evidence": {...}}}}
//
// `weights`: one finite number >= 0 for each layer, mean 1 (docs/keyformer.md,
// Sizes). `evidence`, and any other key, is for people: how the weights came
// about. The profile `uniform`, all layers alike, is built in.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

namespace kf::engine {

inline constexpr std::string_view kUniformProfile = "uniform";

// Name to weights, [layers]; those of `uniform` are empty.
using LayerProfiles = std::map<std::string, std::vector<double>, std::less<>>;

// "model.gguf" -> "model.gguf.profiles.json".
std::string LayerProfilesPath(const std::string& model_path);

// `uniform` and what is in the file; `uniform` alone where there is no such
// file and it is optional. kInvalidArgument names the file, the profile and the
// field. At most 1 MiB and 256 profiles; names are 1 to 64 letters, digits,
// '.', '_' and '-'.
absl::StatusOr<LayerProfiles> LoadLayerProfiles(const std::string& path,
                                                int32_t layers,
                                                bool optional);

}  // namespace kf::engine
