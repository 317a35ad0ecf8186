// How long an operation of a backend takes.
#pragma once

#include <chrono>
#include <functional>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/backend.h"
#include "tests/gpu/plan.h"

namespace kf::gpu_bench {

// Seconds since it was made.
class Stopwatch {
 public:
  double Seconds() const {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() -
                                         start_)
        .count();
  }

 private:
  std::chrono::steady_clock::time_point start_ =
      std::chrono::steady_clock::now();
};

// Until all work given to the backend is done.
absl::Status WaitFor(Backend& backend);

// Of one call, when calls follow each other without a wait between them: what
// the device takes, or the host where that is slower. The median of
// plan.samples.
absl::StatusOr<double> SecondsPerCall(
    const Plan& plan,
    Backend& backend,
    const std::function<absl::Status()>& call);

}  // namespace kf::gpu_bench
