// Reading the values of flags: words, ranges, sizes. Errors name flag, value
// and what is wanted.
#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace kf::server {

// The meaning of one of a few words.
template <typename T>
absl::StatusOr<T> Choose(const char* flag,
                         const std::string& value,
                         const std::map<std::string, T>& choices) {
  const auto it = choices.find(value);
  if (it != choices.end()) return it->second;
  return absl::InvalidArgumentError(absl::StrCat(
      "--", flag, ": \"", value, "\", want ",
      absl::StrJoin(choices, ", ", [](std::string* out, const auto& choice) {
        out->append(choice.first);
      })));
}

absl::Status CheckRange(const char* flag,
                        double value,
                        bool in_range,
                        const char* want);

// "4GiB" and the like; below 2^63.
absl::StatusOr<uint64_t> ParseBytes(const char* flag, const std::string& text);

}  // namespace kf::server
