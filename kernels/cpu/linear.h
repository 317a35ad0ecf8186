// y = x W^T on packed weights: loading, and cutting the product into blocks for
// the threads.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/backend.h"
#include "kernels/core/aligned.h"
#include "kernels/core/thread_pool.h"
#include "kernels/cpu/dense_kernels.h"
#include "kernels/cpu/group_kernels.h"
#include "kernels/cpu/row_block.h"
#include "kernels/cpu/scratch.h"

namespace kf::cpu {

// Panels of one layout that follow each other in W and in memory.
struct PanelRun {
  WeightFormat format = WeightFormat::kF32;  // kQ8, kQ4: groups of so many bits
  int64_t first = 0;                         // panel
  int64_t count = 0;
  int64_t panel_bytes = 0;
  std::byte* data = nullptr;

  std::byte* panel(int64_t index) const {
    return data + (index - first) * panel_bytes;
  }
};

// W [out, in] in panels of 16 rows (dense_kernels.h, group_kernels.h).
class PackedLinear : public LinearWeights {
 public:
  // Packs in parallel; beside the result it takes 64 KiB a thread.
  // kResourceExhausted if the weights find no memory.
  static absl::StatusOr<std::unique_ptr<PackedLinear>> Create(
      std::span<const WeightView> stacked,
      WeightFormat format,
      ThreadPool& pool);

  int64_t in() const override { return in_; }
  int64_t out() const override { return out_; }
  size_t bytes() const override { return memory_.bytes(); }

  // As asked for; under kQ4 there may be runs of kQ8.
  WeightFormat format() const { return format_; }
  std::span<const PanelRun> runs() const { return runs_; }
  // Of every panel: K, pairs of it, or groups.
  int64_t steps() const;

 private:
  PackedLinear(int64_t in, int64_t out, WeightFormat format)
      : in_(in), out_(out), format_(format) {}

  int64_t in_;
  int64_t out_;
  WeightFormat format_;
  AlignedBytes memory_;
  std::vector<PanelRun> runs_;
};

// What products run on; of one SIMD level.
struct LinearContext {
  const DenseKernels& dense;
  const GroupKernels& groups;
  const RowBlockKernels* row_blocks;  // null: the level has none
  ThreadPool& pool;
  ScratchArena& scratch;
};

struct LinearArgs {
  const PackedLinear& weights;
  const float* x = nullptr;  // [rows, in]
  int64_t rows = 0;
  float* out = nullptr;  // [rows, out]
  bool add = false;      // out += product
};

absl::Status RunLinear(const LinearContext& context, const LinearArgs& args);

}  // namespace kf::cpu
