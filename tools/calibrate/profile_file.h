// Writes a layer profile into the file beside a model
// (engine/cache/layer_profile reads it).
#pragma once

#include <cstddef>
#include <map>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "tools/calibrate/search.h"

namespace kf::tools {

struct ProfileNote {
  std::string name;     // of the profile
  std::string model;    // as the server calls it
  std::string command;  // what made it
  std::string date;     // YYYY-MM-DD
  std::string texts;    // what it was measured on
};

// The file's new content: `before` (the old content, empty if there is none)
// with the profile `note.name` added or replaced. kInvalidArgument if `before`
// is no profile file.
absl::StatusOr<std::string> WithProfile(const std::string& before,
                                        const ProfileNote& note,
                                        const SearchOptions& options,
                                        const SearchResult& result);

// The weights of a file's profiles by name; kInvalidArgument if it is no
// profile file, or a profile has not one weight for each of `layers`.
absl::StatusOr<std::map<std::string, std::vector<double>>> ReadProfiles(
    const std::string& text, size_t layers);

}  // namespace kf::tools
