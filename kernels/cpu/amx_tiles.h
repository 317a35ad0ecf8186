// Tiles of AMX as the kernels here lay them out; for sources compiled with
// KF_SIMD_AMX. Tiles 0 to 3 are sums (upper left, upper right, lower left,
// lower right), 4 and 5 rows of the left operand (upper, lower), 6 and 7
// columns of the right one (left, right): up to 16 rows of 16 numbers, or of 16
// pairs of bf16. A tile's sum goes over 32 k a step, of each first the even and
// the odd products by themselves and then both.
#pragma once

#include <stdint.h>

#include "kernels/cpu/vec.h"

namespace kf::cpu::KF_SIMD_NS {

inline constexpr int64_t kTileHeight = 16;  // rows
inline constexpr int64_t kTilePairs = 16;   // of k a step
inline constexpr int64_t kTileLine = 64;    // bytes of a row
inline constexpr int64_t kTileBytes = kTileHeight * kTileLine;

// Rows of the upper and the lower tiles, as many as there are: a row's bits do
// not depend on how many others a tile has.
struct TileHeights {
  int64_t upper = 0;  // 1 to 16
  int64_t lower = 0;  // 0 to 16
};

namespace {

// Of `rows` that are left.
inline TileHeights HeightsOf(int64_t rows) {
  if (rows <= kTileHeight) return {rows, 0};
  return {kTileHeight,
          rows < 2 * kTileHeight ? rows - kTileHeight : kTileHeight};
}

// The compiler does not know of all memory that the intrinsics read and write.
inline void Settle() { __asm__ volatile("" ::: "memory"); }

// Of ldtilecfg, `rows` of each tile, 64 bytes wide. Also sets all tiles to
// zero.
inline void ConfigureTiles(const int64_t (&rows)[8]) {
  struct alignas(64) {
    uint8_t palette = 1;
    uint8_t start_row = 0;
    uint8_t reserved[14] = {};
    uint16_t row_bytes[16] = {};
    uint8_t rows[16] = {};
  } shapes;
  for (int tile = 0; tile < 8; ++tile) {
    shapes.row_bytes[tile] = static_cast<uint16_t>(kTileLine);
    shapes.rows[tile] = static_cast<uint8_t>(rows[tile]);
  }
  Settle();
  _tile_loadconfig(&shapes);
}

inline void ShapeTiles(TileHeights heights) {
  const int64_t upper = heights.upper;
  const int64_t lower = heights.lower > 0 ? heights.lower : upper;
  ConfigureTiles(
      {upper, upper, lower, lower, upper, lower, kTilePairs, kTilePairs});
}

}  // namespace
}  // namespace kf::cpu::KF_SIMD_NS
