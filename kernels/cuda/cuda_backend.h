// The CUDA backend: kernels/backend.h over one device and one stream.
//
// Calls return when their work is in the stream, Download when its bytes have
// come; an error of the device is the status of the call that first meets it.
// Dense products are cuBLASLt's or our own (kernels/cuda/products.h), whose
// rows have the same bits in every batch.
#pragma once

#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/backend.h"

namespace kf {
namespace cuda {

// Whether device `index` can serve; kUnavailable says what is missing.
absl::Status CheckCudaDevice(int index);

}  // namespace cuda

// Reads `device_index` and `cublaslt_path` of the options. kUnavailable as
// CheckCudaDevice; kInvalidArgument: the path is of no use, and why.
absl::StatusOr<std::unique_ptr<Backend>> CreateCudaBackend(
    const BackendOptions& options);

}  // namespace kf
