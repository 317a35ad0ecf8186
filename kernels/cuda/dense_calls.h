// The dense operations of kernels/backend.h: each as a value, which holds all
// that its launches depend on but for the number of rows, and the launches.
//
// Thread-compatible: the engine thread's.
#pragma once

#include <cstddef>
#include <cstdint>

#include "absl/status/status.h"
#include "kernels/backend.h"
#include "kernels/core/bf16.h"
#include "kernels/cuda/device.h"
#include "kernels/cuda/staging.h"
#include "kernels/cuda/weights.h"

namespace kf::cuda {

// All pointers are device memory; shapes as in backend.h.
struct EmbedOp {
  const float* f32 = nullptr;  // [vocabulary, width], or null:
  const Bf16* bf16 = nullptr;  // the same
  int64_t width = 0;
  float* out = nullptr;
  bool operator==(const EmbedOp&) const = default;
};

struct NormOp {
  const float* x = nullptr;
  const float* weight = nullptr;
  float eps = 0.0F;
  int64_t width = 0;
  float* out = nullptr;
  bool operator==(const NormOp&) const = default;
};

struct SwiGluOp {
  const float* x = nullptr;
  int64_t width = 0;
  float* out = nullptr;
  bool operator==(const SwiGluOp&) const = default;
};

// y = residual + x W^T; residual null: none.
struct ProductOp {
  const DeviceLinear* weights = nullptr;
  const void* data = nullptr;  // of the weights
  const float* x = nullptr;
  const float* residual = nullptr;
  float* y = nullptr;
  bool operator==(const ProductOp&) const = default;
};

EmbedOp MakeEmbedOp(const EmbeddingTable& table, float* out);
ProductOp MakeProductOp(const LinearWeights& weights,
                        const float* x,
                        const float* residual,
                        float* y);

class DenseCalls {
 public:
  DenseCalls(const Device& device, Workspace& workspace)
      : device_(device), workspace_(workspace) {}

  // ids [rows], device memory. rows >= 1, here and below.
  void Embed(const EmbedOp& op, const int32_t* ids, int64_t rows) const;
  void Norm(const NormOp& op, int64_t rows) const;
  void SwiGlu(const SwiGluOp& op, int64_t rows) const;
  absl::Status Product(const ProductOp& op, int64_t rows);

  // What Product asks of the workspace.
  static size_t WorkspaceBytes(const DeviceLinear& w, int64_t rows);

 private:
  const Device& device_;
  Workspace& workspace_;
};

}  // namespace kf::cuda
