#include "kernels/backend.h"

#include <memory>

#include "kernels/core/status.h"
#include "kernels/cpu/cpu_backend.h"
#include "kernels/ref/ref_backend.h"
#if defined(KF_WITH_CUDA)
#include "kernels/cuda/cuda_backend.h"
#endif

namespace kf {

absl::Status CudaAvailability([[maybe_unused]] int index) {
#if defined(KF_WITH_CUDA)
  return cuda::CheckCudaDevice(index);
#else
  return absl::UnimplementedError("this build has no CUDA backend");
#endif
}

absl::StatusOr<std::unique_ptr<Backend>> CreateBackend(
    const BackendOptions& options) {
  const bool choose = options.name == "auto";
  if (choose || options.name == "cuda") {
    absl::Status available = CudaAvailability(options.device_index);
    if (!available.ok() && !choose) {
      return absl::Status(available.code(), absl::StrCat("device: \"cuda\": ",
                                                         available.message()));
    }
#if defined(KF_WITH_CUDA)
    if (available.ok()) return CreateCudaBackend(options);
#endif
  }
  if (choose || options.name == "cpu") return CreateCpuBackend(options);
  if (options.name == "reference") return CreateReferenceBackend();
  return absl::InvalidArgumentError(absl::StrCat(
      "device: \"", options.name, "\", want auto, cpu, cuda or reference"));
}

}  // namespace kf
