// How many sequences a request has, and what goes with several.
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "engine/cache/request_sizes.h"
#include "engine/request.h"

namespace kf::engine {

// kInvalidArgument names both fields where two do not go together
// (docs/sampling.md).
absl::Status CheckSequences(const Request& request, int32_t vocabulary);

// Samples, or the beam width.
int32_t CountSequences(const Request& request);

// Fixes how many they are, what pages they have in common, and whether they
// take theirs as their tokens come.
void FixSequences(const Request& request, RequestSizes& sizes);

}  // namespace kf::engine
