// The requests of a simulation: read from a CSV file, or drawn from a seed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "tools/sim/policy_spec.h"

namespace kf::sim {

struct TraceRequest {
  double arrival_s = 0.0;  // after the start, >= 0
  int32_t prompt_tokens = 0;
  int32_t output_tokens = 0;              // all of them are generated
  std::optional<PolicySpec> policy = {};  // absent: the simulation's
  int32_t priority = 0;                   // larger first
};

// CSV. The first line names the columns, in any order: arrival_s,
// prompt_tokens, output_tokens, and where wanted policy, ratio, priority; an
// empty policy or ratio is none. Empty lines and lines that begin with # are
// skipped; arrivals do not go back. kInvalidArgument names line, field, value
// and limit.
absl::StatusOr<std::vector<TraceRequest>> ParseTrace(std::string_view csv);

std::string FormatTrace(const std::vector<TraceRequest>& trace);

// All ranges are checked where the command line is read.
struct SyntheticTrace {
  size_t requests = 0;
  double rate = 0.0;  // of a Poisson process, requests a second; 0: all at once
  // Lengths are drawn from log-normal distributions with these medians, and cut
  // to [1, max_tokens].
  int32_t prompt_tokens = 0;
  int32_t output_tokens = 0;
  double spread = 0.0;  // sigma of the logarithm; 0: every length the same
  int32_t max_tokens = 1 << 20;
  uint64_t seed = 0;
};

// The same on every machine, up to a length whose rounding the mathematical
// library decides.
std::vector<TraceRequest> DrawTrace(const SyntheticTrace& options);

}  // namespace kf::sim
