// SampleRows of kernels/backend.h on the device: rows are described in one
// copy, and what they come to returns in one.
//
// Thread-compatible: the engine thread's.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/backend.h"
#include "kernels/cuda/device.h"
#include "kernels/cuda/staging.h"

namespace kf::cuda {

class SampleCalls {
 public:
  SampleCalls(const Device& device, Staging& staging, Workspace& workspace)
      : device_(device), staging_(staging), workspace_(workspace) {}

  // Waits for the device.
  absl::StatusOr<std::vector<SampledRow>> Rows(std::span<const SampleRow> rows,
                                               int32_t vocabulary);

 private:
  absl::Status Fetch(const unsigned char* from, size_t bytes);

  const Device& device_;
  Staging& staging_;
  Workspace& workspace_;
  std::unique_ptr<PinnedBuffer> results_;
};

}  // namespace kf::cuda
