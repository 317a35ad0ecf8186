#include "server/flag_values.h"

#include <algorithm>

#include "absl/strings/numbers.h"

namespace kf::server {

absl::Status CheckRange(const char* flag,
                        double value,
                        bool in_range,
                        const char* want) {
  if (in_range) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("--", flag, ": ", value, ", want ", want));
}

absl::StatusOr<uint64_t> ParseBytes(const char* flag, const std::string& text) {
  const std::map<std::string, int> shifts = {
      {"", 0}, {"KiB", 10}, {"MiB", 20}, {"GiB", 30}, {"TiB", 40}};
  const size_t digits =
      std::min(text.find_first_not_of("0123456789"), text.size());
  const auto unit = shifts.find(text.substr(digits));
  uint64_t number = 0;
  if (unit == shifts.end() ||
      !absl::SimpleAtoi(text.substr(0, digits), &number) ||
      number > (UINT64_MAX >> 1 >> unit->second)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "--", flag, ": \"", text,
        "\", want a whole number, with KiB, MiB, GiB or TiB after it or not"));
  }
  return number << unit->second;
}

}  // namespace kf::server
