// The CPU backend: SIMD kernels over a thread pool.
#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "kernels/backend.h"

namespace kf {

// Reads `threads` and `simd` of the options. kInvalidArgument names the option,
// its value and what is on offer.
absl::StatusOr<std::unique_ptr<Backend>> CreateCpuBackend(
    const BackendOptions& options);

}  // namespace kf
