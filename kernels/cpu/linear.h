// y = x W^T on packed weights: loading, and cutting the product into blocks for
// the threads.
#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "absl/status/statusor.h"
#include "kernels/backend.h"
#include "kernels/core/aligned.h"
#include "kernels/core/thread_pool.h"
#include "kernels/cpu/dense_kernels.h"
#include "kernels/cpu/scratch.h"

namespace kf::cpu {

// W [out, in] in panels of 16 rows (dense_kernels.h).
class PackedLinear : public LinearWeights {
 public:
  // Dequantises and packs in parallel; beside the result it takes 64 KiB a
  // thread. kResourceExhausted if the weights find no memory.
  static absl::StatusOr<std::unique_ptr<PackedLinear>> Create(
      std::span<const WeightView> stacked,
      WeightFormat format,
      ThreadPool& pool);

  int64_t in() const override { return in_; }
  int64_t out() const override { return out_; }
  size_t bytes() const override { return panels_.bytes(); }

  WeightFormat format() const { return format_; }
  // K, or pairs of it.
  int64_t steps() const {
    return format_ == WeightFormat::kF32 ? in_ : (in_ + 1) / 2;
  }
  int64_t panel_bytes() const { return steps() * kLineBytes; }
  int64_t panel_count() const {
    return (out_ + kPanelColumns - 1) / kPanelColumns;
  }
  std::byte* panel(int64_t index) const {
    return panels_.data() + index * panel_bytes();
  }

 private:
  PackedLinear(int64_t in, int64_t out, WeightFormat format)
      : in_(in), out_(out), format_(format) {}

  int64_t in_;
  int64_t out_;
  WeightFormat format_;
  AlignedBytes panels_;
};

struct LinearArgs {
  const PackedLinear& weights;
  const float* x = nullptr;  // [rows, in]
  int64_t rows = 0;
  float* out = nullptr;  // [rows, out]
  bool add = false;      // out += product
};

absl::Status RunLinear(const DenseKernels& kernels,
                       ThreadPool& pool,
                       ScratchArena& scratch,
                       const LinearArgs& args);

}  // namespace kf::cpu
