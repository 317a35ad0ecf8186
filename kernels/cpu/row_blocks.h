// Cutting products of many rows into blocks for the threads (row_block.h).
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "kernels/cpu/linear.h"

namespace kf::cpu {

// Whether RunRowBlocks serves: the level has kernels for blocks, and the shape
// is one they take.
bool TakesRowBlocks(const LinearContext& context, const LinearArgs& args);
// Takes from the context's scratch, which the caller has reset.
absl::Status RunRowBlocks(const LinearContext& context, const LinearArgs& args);

// inout += (silu(gate) * up) Wdown^T, where [gate; up] = x Wgate_up^T.
struct GatedArgs {
  const PackedLinear& gate_up;  // [2 ffn, hidden]
  const PackedLinear& down;     // [hidden, ffn]
  const float* x = nullptr;     // [rows, hidden]
  int64_t rows = 0;
  float* inout = nullptr;  // [rows, hidden]
};

// Both products, block by block, with what is between them in the cache. For
// enough rows that each thread has blocks of its own.
bool TakesGated(const LinearContext& context, const GatedArgs& args);
// As RunRowBlocks.
absl::Status RunGated(const LinearContext& context, const GatedArgs& args);

}  // namespace kf::cpu
