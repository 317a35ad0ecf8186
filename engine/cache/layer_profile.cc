#include "engine/cache/layer_profile.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <system_error>
#include <utility>

#include "engine/cache/request_sizes.h"
#include "kernels/core/status.h"
#include "nlohmann/json.hpp"

namespace kf::engine {
namespace {

using Json = nlohmann::json;

constexpr std::uintmax_t kMaxBytes = std::uintmax_t{1} << 20;
constexpr size_t kMaxProfiles = 256;
constexpr size_t kMaxNameBytes = 64;

bool IsName(std::string_view name) {
  return !name.empty() && name.size() <= kMaxNameBytes &&
         std::all_of(name.begin(), name.end(), [](char c) {
           return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') ||
                  (c >= '0' && c <= '9') || c == '.' || c == '_' || c == '-';
         });
}

// The messages below are of what is in the file; it goes in front.
absl::Status Refuse(std::string_view where, std::string_view what) {
  return absl::InvalidArgumentError(
      absl::StrCat(ToAbsl(where), ": ", ToAbsl(what)));
}

absl::StatusOr<std::vector<double>> ReadWeights(const std::string& name,
                                                const Json& profile,
                                                int32_t layers) {
  const std::string field = "profiles." + name + ".weights";
  if (!profile.is_object() || !profile.contains("weights") ||
      !profile["weights"].is_array()) {
    return Refuse(field, "missing, want a list of numbers");
  }
  std::vector<double> weights;
  for (const Json& weight : profile["weights"]) {
    if (!weight.is_number()) {
      return Refuse(absl::StrCat(field, "[", weights.size(), "]"),
                    "not a number");
    }
    weights.push_back(weight.get<double>());
  }
  KF_RETURN_IF_ERROR(CheckLayerWeights(field, weights, layers));
  return weights;
}

absl::StatusOr<LayerProfiles> ReadProfiles(const std::string& text,
                                           int32_t layers) {
  const Json file = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (file.is_discarded()) return Refuse("the file", "not JSON");
  if (!file.is_object() || !file.contains("profiles") ||
      !file["profiles"].is_object()) {
    return Refuse("profiles", "missing, want an object: name to profile");
  }
  const Json& profiles = file["profiles"];
  if (profiles.size() > kMaxProfiles) {
    return Refuse("profiles", absl::StrCat(profiles.size(), ", want at most ",
                                           kMaxProfiles));
  }
  LayerProfiles result = {{std::string(kUniformProfile), {}}};
  for (const auto& [name, profile] : profiles.items()) {
    if (!IsName(name)) {
      return Refuse("profiles",
                    "a name is 1 to 64 letters, digits, '.', '_' and '-'");
    }
    if (name == kUniformProfile) {
      return Refuse("profiles.uniform", "built in, want another name");
    }
    KF_ASSIGN_OR_RETURN(result[name], ReadWeights(name, profile, layers));
  }
  return result;
}

absl::StatusOr<LayerProfiles> ReadFile(const std::string& path,
                                       int32_t layers) {
  std::error_code error;
  if (!std::filesystem::is_regular_file(path, error)) {
    return Refuse("the file", "not a regular file");
  }
  const std::uintmax_t bytes = std::filesystem::file_size(path, error);
  if (error || bytes > kMaxBytes) {
    return Refuse("the file", "larger than 1 MiB, or its size is unknown");
  }
  std::ifstream in(path, std::ios::binary);
  std::ostringstream text;
  if (!in || (bytes > 0 && !(text << in.rdbuf()))) {
    return Refuse("the file", "cannot be read");
  }
  return ReadProfiles(text.str(), layers);
}

}  // namespace

std::string LayerProfilesPath(const std::string& model_path) {
  return model_path + ".profiles.json";
}

absl::StatusOr<LayerProfiles> LoadLayerProfiles(const std::string& path,
                                                int32_t layers,
                                                bool optional) {
  std::error_code error;
  const auto kind = std::filesystem::status(path, error).type();
  if (kind == std::filesystem::file_type::not_found) {
    if (!optional) return Refuse(path, "no such file");
    return LayerProfiles{{std::string(kUniformProfile), {}}};
  }
  auto profiles = ReadFile(path, layers);
  if (profiles.ok()) return profiles;
  return absl::InvalidArgumentError(
      absl::StrCat(path, ": ", profiles.status().message()));
}

}  // namespace kf::engine
