// A cache policy as it is written on a command line or in a trace: "full",
// "h2o:0.9", "keyformer:0.5".
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/request.h"

namespace kf::sim {

struct PolicySpec {
  engine::CachePolicy policy = engine::CachePolicy::kFull;
  double ratio = 0.5;  // of the prompt, (0, 1]; unread by full

  bool operator==(const PolicySpec&) const = default;
};

// "keyformer:0.5"; "full" has no ratio.
std::string ToString(const PolicySpec& spec);

// NAME or NAME:RATIO, NAME one of full, window, h2o, keyformer, quest; without
// a ratio 0.5. kInvalidArgument names the value and what was expected.
absl::StatusOr<PolicySpec> ParsePolicy(std::string_view text);
// The same, separated by commas; at least one.
absl::StatusOr<std::vector<PolicySpec>> ParsePolicies(std::string_view text);

// The whole text as a finite number; kInvalidArgument names the text.
absl::StatusOr<double> ParseNumber(std::string_view text);

}  // namespace kf::sim
