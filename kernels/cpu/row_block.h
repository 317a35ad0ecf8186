// Products of many rows, as prompts have them: a thread takes a block of rows
// against many panels, so that the rows stay in its second-level cache, and
// what is done with the sums is done between the products of the tiles that
// follow. The bits of an element are those of DenseKernels::linear_bf16.
#pragma once

#include <stdint.h>

namespace kf::cpu {

// Rows are packed in tiles of 16, two by two: [tile][K / 32][16 rows][32 bf16];
// rows that fill up the last pair of tiles are zero.
inline constexpr int64_t kBlockTileRows = 16;
inline constexpr int64_t kBlockRowPair = 2 * kBlockTileRows;
inline constexpr int64_t kBlockPairs = 16;  // of K, that a tile takes

// Bytes of `rows` packed rows of K values.
constexpr int64_t RowBlockBytes(int64_t rows, int64_t k) {
  return (rows + kBlockRowPair - 1) / kBlockRowPair * kBlockRowPair * k * 2;
}

// The operands of x W^T.
struct RowBlock {
  const void* x;        // packed
  int64_t rows;         // > 0
  int64_t steps;        // K / 2, a multiple of kBlockPairs
  const void* panels;   // of W, as in LinearBlock
  int64_t panel_bytes;  // from a panel to the next
  int64_t columns;      // > 0; a multiple of 16, or up to the end of W
};

struct RowBlockKernels {
  // Rows [rows, k] of floats as RowBlock::x, rounded as DenseKernels::pack_row
  // does. K a multiple of 32.
  void (*pack)(const float* x, int64_t rows, int64_t k, void* out);
  // out [rows, columns] = x W^T, or += where `add`; from a row to the next are
  // `out_stride` floats.
  void (*linear)(const RowBlock& block,
                 float* out,
                 int64_t out_stride,
                 bool add);
  // W's first half of `columns` is the gate's, the second `up`'s; columns a
  // multiple of 64. out: silu(gate) * up, [rows, columns / 2], packed as
  // RowBlock::x; as DenseKernels::swiglu and pack would leave it.
  void (*gate_up)(const RowBlock& block, void* out);
};

}  // namespace kf::cpu
