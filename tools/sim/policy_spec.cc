#include "tools/sim/policy_spec.h"

#include <array>
#include <charconv>
#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/core/status.h"

namespace kf::sim {
namespace {

using engine::CachePolicy;

constexpr std::array<std::pair<std::string_view, CachePolicy>, 5> kPolicies = {{
    {"full", CachePolicy::kFull},
    {"window", CachePolicy::kWindow},
    {"h2o", CachePolicy::kH2O},
    {"keyformer", CachePolicy::kKeyformer},
    {"quest", CachePolicy::kQuest},
}};

}  // namespace

std::string ToString(const PolicySpec& spec) {
  for (const auto& [name, policy] : kPolicies) {
    if (policy != spec.policy) continue;
    if (policy == CachePolicy::kFull) return std::string(name);
    return absl::StrCat(ToAbsl(name), ":", spec.ratio);
  }
  return "unknown";
}

absl::StatusOr<double> ParseNumber(std::string_view text) {
  double value = 0.0;
  const char* end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, value);
  if (error != std::errc() || stop != end || !std::isfinite(value)) {
    return absl::InvalidArgumentError(
        absl::StrCat("\"", ToAbsl(text), "\", want a number"));
  }
  return value;
}

absl::StatusOr<PolicySpec> ParsePolicy(std::string_view text) {
  const size_t colon = text.find(':');
  const std::string_view name = text.substr(0, colon);
  for (const auto& [known, policy] : kPolicies) {
    if (name != known) continue;
    PolicySpec spec{.policy = policy};
    if (colon == std::string_view::npos) return spec;
    if (policy == CachePolicy::kFull) {
      return absl::InvalidArgumentError(absl::StrCat(
          "policy: \"", ToAbsl(text), "\", want full without a ratio"));
    }
    const auto ratio = ParseNumber(text.substr(colon + 1));
    if (!ratio.ok() || !(*ratio > 0.0 && *ratio <= 1.0)) {
      return absl::InvalidArgumentError(absl::StrCat(
          "policy ", ToAbsl(name), ": ratio \"", ToAbsl(text.substr(colon + 1)),
          "\", want 0 < ratio <= 1"));
    }
    spec.ratio = *ratio;
    return spec;
  }
  return absl::InvalidArgumentError(
      absl::StrCat("policy: \"", ToAbsl(name),
                   "\", want full, window, h2o, keyformer or quest"));
}

absl::StatusOr<std::vector<PolicySpec>> ParsePolicies(std::string_view text) {
  std::vector<PolicySpec> specs;
  for (;;) {
    const size_t comma = text.find(',');
    KF_ASSIGN_OR_RETURN(const PolicySpec spec,
                        ParsePolicy(text.substr(0, comma)));
    specs.push_back(spec);
    if (comma == std::string_view::npos) return specs;
    text.remove_prefix(comma + 1);
  }
}

}  // namespace kf::sim
