#include "kernels/backend.h"

#include <memory>

#include "kernels/core/status.h"
#include "kernels/cpu/cpu_backend.h"
#include "kernels/ref/ref_backend.h"

namespace kf {

absl::StatusOr<std::unique_ptr<Backend>> CreateBackend(
    const BackendOptions& options) {
  if (options.name == "cpu") return CreateCpuBackend(options);
  if (options.name == "reference") return CreateReferenceBackend();
  return absl::InvalidArgumentError(
      absl::StrCat("device: \"", options.name, "\", want cpu or reference"));
}

}  // namespace kf
