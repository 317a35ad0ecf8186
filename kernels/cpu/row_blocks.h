// Cutting products of many rows into blocks for the threads (row_block.h).
#pragma once

#include "absl/status/status.h"
#include "kernels/cpu/linear.h"

namespace kf::cpu {

// Whether RunRowBlocks serves: the level has kernels for blocks, and the shape
// is one they take.
bool TakesRowBlocks(const LinearContext& context, const LinearArgs& args);
absl::Status RunRowBlocks(const LinearContext& context, const LinearArgs& args);

// inout += (silu(gate) * up) Wdown^T, where [gate; up] = x Wgate_up^T.
struct FfnArgs {
  const PackedLinear& gate_up;  // [2 F, H]
  const PackedLinear& down;     // [H, F]
  const float* x = nullptr;     // [rows, H]
  int64_t rows = 0;
  float* inout = nullptr;  // [rows, H]
};

// Both products, block by block, with what is between them in the cache. For
// enough rows that each thread has blocks of its own.
bool TakesFeedForward(const LinearContext& context, const FfnArgs& args);
absl::Status RunFeedForward(const LinearContext& context, const FfnArgs& args);

}  // namespace kf::cpu
