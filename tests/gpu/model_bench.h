// Whole models of random weights, through the engine: prefill, decode steps,
// and the throughput table of the Keyformer paper.
#pragma once

#include "absl/status/status.h"
#include "tests/gpu/operation_bench.h"
#include "tests/gpu/plan.h"
#include "tests/gpu/report.h"
#include "tests/gpu/timing.h"

namespace kf::gpu_bench {

// Adds its sections; cells that do not begin before plan.seconds on `watch` are
// left out.
absl::Status RunModels(const Plan& plan,
                       const DeviceLimits& limits,
                       const Stopwatch& watch,
                       Report& report);

}  // namespace kf::gpu_bench
