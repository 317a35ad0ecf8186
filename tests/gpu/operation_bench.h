// Single operations of a backend: copies, decode and prompt attention, cuts,
// dense products.
#pragma once

#include "absl/status/status.h"
#include "tests/gpu/plan.h"
#include "tests/gpu/report.h"

namespace kf::gpu_bench {

// What later parts measure themselves against.
struct DeviceLimits {
  double copy_bytes_per_s = 0.0;  // read and written
};

// Adds its sections. `limits` is filled in.
absl::Status RunOperations(const Plan& plan,
                           Report& report,
                           DeviceLimits& limits);

}  // namespace kf::gpu_bench
