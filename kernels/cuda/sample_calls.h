// StartSampling and WaitForSamples of kernels/backend.h on the device: rows are
// described in one copy, and what they come to returns in one, behind an event
// of its own, so that work given to the stream afterwards is not waited for.
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

// More rows share the working memory of these, one launch after another.
inline constexpr int32_t kSampledAtOnce = 64;

class SampleCalls {
 public:
  SampleCalls(const Device& device, Staging& staging, Workspace& workspace)
      : device_(device), staging_(staging), workspace_(workspace) {}

  // What Start asks of the workspace, at most.
  static size_t WorkspaceBytes(int64_t rows, int32_t vocabulary);

  absl::Status Start(std::span<const SampleRow> rows, int32_t vocabulary);
  absl::StatusOr<std::vector<SampledRow>> Wait();

 private:
  // Where the results of a call are, in bytes: they come first in the working
  // memory, and are fetched at once.
  struct Results {
    size_t tokens = 0;      // [rows]
    size_t top_ids = 0;     // of all rows, one after the other
    size_t top_logits = 0;  // the same
    size_t bytes = 0;
  };

  static Results Place(std::span<const SampleRow> rows, Parts& parts);
  absl::Status Fetch(const unsigned char* from, size_t bytes);
  std::vector<SampledRow> Read() const;

  const Device& device_;
  Staging& staging_;
  Workspace& workspace_;
  // Of the sampling that was started last.
  bool started_ = false;
  Results results_;
  std::vector<size_t> tops_;  // [rows], how many of the most probable tokens
  std::unique_ptr<PinnedBuffer> fetched_;
  CopyFence fence_;  // of the copy into fetched_
};

}  // namespace kf::cuda
