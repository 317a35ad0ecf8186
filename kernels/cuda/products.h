// Dense products in bf16 by cuBLASLt, where there is one whose rows keep their
// bits in every batch. All others are our own kernels' (dense_calls.h).
//
// Thread-compatible: the engine thread's, after the thread that made it.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/cuda/cublaslt_choice.h"
#include "kernels/cuda/cublaslt_library.h"
#include "kernels/cuda/cublaslt_matmul.h"
#include "kernels/cuda/device.h"
#include "kernels/cuda/staging.h"
#include "kernels/cuda/weights.h"

namespace kf::cuda {

class Products {
 public:
  // `cublaslt_path` as in BackendOptions; `places`: the files that are tried
  // where it is empty. A path that was given has to work: kInvalidArgument
  // names option, value and reason.
  static absl::StatusOr<std::unique_ptr<Products>> Create(
      const Device& device,
      Workspace& workspace,
      const std::string& cublaslt_path,
      const std::vector<std::string>& places);
  ~Products();
  Products(const Products&) = delete;
  Products& operator=(const Products&) = delete;

  // To be called once for each matrix, before it is multiplied by: chooses the
  // algorithms for its shape.
  absl::Status Prepare(const DeviceLinear& w);

  // Whether cuBLASLt multiplies by this matrix; else our own kernels do.
  bool Serves(const DeviceLinear& w) const { return ShapeOf(w) != nullptr; }

  // What Multiply asks of the workspace.
  size_t WorkspaceBytes(const DeviceLinear& w, int64_t rows) const;

  // Of one that it serves: out = residual + x W^T; residual null: none. x
  // [rows, in] and out [rows, out] are 16-byte aligned.
  absl::Status Multiply(const DeviceLinear& w,
                        const float* x,
                        int64_t rows,
                        const float* residual,
                        float* out);

  // What multiplies by the matrices prepared so far: "cuBLASLt 13.1.0", "own
  // products", or the one and the other. Before the first: who will be asked.
  std::string description() const;
  // For the operator: what was looked for in vain, or what cuBLASLt does for
  // the shapes prepared so far.
  std::string notice() const;

 private:
  // A shape that cuBLASLt was asked about.
  struct Shape {
    std::unique_ptr<LtMatmul> matmul;
    std::optional<LtChoice> choice;  // null: our own kernel
  };

  Products(const Device& device, Workspace& workspace)
      : device_(device), workspace_(workspace) {}

  // Chooses the algorithms for a shape, once.
  absl::Status Ask(const DeviceLinear& w);

  // Null: not cuBLASLt's.
  const Shape* ShapeOf(const DeviceLinear& w) const;

  // Padded: zeros follow the rows of args.x up to a multiple of kLtFewRows.
  absl::Status MultiplyByLt(const Shape& shape,
                            ProductArgs<Bf16> args,
                            float* padded_y);
  absl::Status MultiplyPadded(const Shape& shape,
                              const ProductArgs<Bf16>& args,
                              float* padded_y);

  const Device& device_;
  Workspace& workspace_;
  std::optional<CublasLt> library_;
  std::string tried_;  // where there is no library
  // Of the matrices prepared.
  bool any_served_ = false;
  bool any_own_ = false;
  bool any_not_bf16_ = false;
  lt::Handle handle_ = nullptr;
  std::map<std::pair<int64_t, int64_t>, Shape> shapes_;  // by (in, out)
};

}  // namespace kf::cuda
