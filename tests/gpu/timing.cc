#include "tests/gpu/timing.h"

#include <algorithm>
#include <vector>

#include "kernels/core/status.h"

namespace kf::gpu_bench {
namespace {

constexpr int kMostCalls = 2000;  // of a sample: launches that wait in a queue

}  // namespace

absl::Status WaitFor(Backend& backend) { return backend.Download({}, nullptr); }

absl::StatusOr<double> SecondsPerCall(
    const Plan& plan,
    Backend& backend,
    const std::function<absl::Status()>& call) {
  // The first call allocates working memory.
  KF_RETURN_IF_ERROR(call());
  KF_RETURN_IF_ERROR(WaitFor(backend));
  const Stopwatch first;
  KF_RETURN_IF_ERROR(call());
  KF_RETURN_IF_ERROR(WaitFor(backend));
  const double guess = std::max(first.Seconds(), 1e-6);
  const int calls =
      std::clamp(static_cast<int>(plan.sample_s / guess), 1, kMostCalls);
  std::vector<double> samples;
  for (int i = 0; i < plan.samples; ++i) {
    const Stopwatch watch;
    for (int n = 0; n < calls; ++n) KF_RETURN_IF_ERROR(call());
    KF_RETURN_IF_ERROR(WaitFor(backend));
    samples.push_back(watch.Seconds() / calls);
  }
  std::sort(samples.begin(), samples.end());
  return samples[samples.size() / 2];
}

}  // namespace kf::gpu_bench
