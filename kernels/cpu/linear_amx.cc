// bf16 products on tiles: 16 rows x 16 columns of sums, 32 k a step.
//
// A packed panel's 16 lines of 16 pairs are a tile as they lie in memory, and
// so are 64 bytes of up to 16 packed rows of x.
#include "kernels/cpu/amx_tiles.h"
#include "kernels/cpu/linear_tiles.h"
#include "kernels/cpu/pack_pairs.h"
#include "kernels/cpu/tile_kernels.h"
#include "kernels/cpu/vec.h"

namespace kf::cpu::KF_SIMD_NS {
namespace {

// Adds or stores `rows` of a tile's sums; `columns` of W are left.
void StoreSums(const LinearBlock& b,
               const float* sums,
               int64_t row,
               int64_t rows,
               int64_t column) {
  for (int64_t r = 0; r < rows; ++r) {
    float* out = b.out + (row + r) * b.out_stride + column;
    const VF sum = Load(sums + r * kPanelColumns);
    if (column + kPanelColumns <= b.columns) {
      Store(b.add ? Load(out) + sum : sum, out);
    } else {
      StorePart(sum, b.columns - column, b.add, out);
    }
  }
}

// Two row tiles and one or two panels; without a lower tile its sums (2 and 3)
// are not touched.
template <bool kLower, bool kRight>
void Tiles(const LinearBlock& b,
           int64_t row,
           TileHeights heights,
           int64_t panel,
           int64_t ahead) {
  const char* x = static_cast<const char*>(b.x) + row * b.x_row_bytes;
  const char* below = x + kTileHeight * b.x_row_bytes;
  const char* left = static_cast<const char*>(b.panels) + panel * b.panel_bytes;
  const char* right = left + b.panel_bytes;
  const int64_t ahead_bytes = ahead * b.panel_bytes;
  alignas(64) char last[2 * kTileBytes];
  _tile_zero(0);
  if constexpr (kRight) _tile_zero(1);
  if constexpr (kLower) _tile_zero(2);
  if constexpr (kLower && kRight) _tile_zero(3);
  for (int64_t step = 0; step < b.steps; step += kTilePairs) {
    const char* w[2] = {left + step * kLineBytes, right + step * kLineBytes};
    if (ahead != 0) {
      for (int64_t line = 0; line < kTilePairs; ++line) {
        __builtin_prefetch(w[0] + ahead_bytes + line * kLineBytes);
        if constexpr (kRight) {
          __builtin_prefetch(w[1] + ahead_bytes + line * kLineBytes);
        }
      }
    }
    const int64_t pairs = b.steps - step;
    if (pairs < kTilePairs) {
      // What follows a panel's end is another's, and 0 times it may be NaN.
      const auto bytes = static_cast<unsigned long>(pairs * kLineBytes);
      __builtin_memset(last, 0, sizeof(last));
      __builtin_memcpy(last, w[0], bytes);
      if constexpr (kRight) __builtin_memcpy(last + kTileBytes, w[1], bytes);
      w[0] = last;
      w[1] = last + kTileBytes;
      Settle();
    }
    const int64_t offset = step * 4;
    _tile_loadd(4, x + offset, b.x_row_bytes);
    _tile_loadd(6, w[0], kLineBytes);
    _tile_dpbf16ps(0, 4, 6);
    if constexpr (kRight) {
      _tile_loadd(7, w[1], kLineBytes);
      _tile_dpbf16ps(1, 4, 7);
    }
    if constexpr (kLower) {
      _tile_loadd(5, below + offset, b.x_row_bytes);
      _tile_dpbf16ps(2, 5, 6);
      if constexpr (kRight) _tile_dpbf16ps(3, 5, 7);
    }
  }
  alignas(64) float sums[kTileHeight * kPanelColumns];
  const int64_t column = panel * kPanelColumns;
  const int64_t lower = row + kTileHeight;
  _tile_stored(0, sums, kLineBytes);
  Settle();
  StoreSums(b, sums, row, heights.upper, column);
  if constexpr (kRight) {
    _tile_stored(1, sums, kLineBytes);
    Settle();
    StoreSums(b, sums, row, heights.upper, column + kPanelColumns);
  }
  if constexpr (kLower) {
    _tile_stored(2, sums, kLineBytes);
    Settle();
    StoreSums(b, sums, lower, heights.lower, column);
  }
  if constexpr (kLower && kRight) {
    _tile_stored(3, sums, kLineBytes);
    Settle();
    StoreSums(b, sums, lower, heights.lower, column + kPanelColumns);
  }
}

}  // namespace

void LinearTiles(const LinearBlock& b) {
  const int64_t panels = (b.columns + kPanelColumns - 1) / kPanelColumns;
  TileHeights shaped;
  for (int64_t panel = 0; panel < panels; panel += 2) {
    const bool right = panel + 1 < panels;
    for (int64_t row = 0; row < b.rows; row += 2 * kTileHeight) {
      const TileHeights heights = HeightsOf(b.rows - row);
      if (heights.upper != shaped.upper || heights.lower != shaped.lower) {
        ShapeTiles(heights);
        shaped = heights;
      }
      const bool fetch = row + 2 * kTileHeight >= b.rows && panel + 3 < panels;
      const auto tiles =
          heights.lower > 0
              ? (right ? Tiles<true, true> : Tiles<true, false>)
              : (right ? Tiles<false, true> : Tiles<false, false>);
      tiles(b, row, heights, panel, fetch ? 2 : 0);
    }
  }
  _tile_release();
}

// Whole steps: a tile reads 64 bytes of a row.
int64_t TileRowBytes(int64_t k) {
  return (k + 2 * kTilePairs - 1) / (2 * kTilePairs) * kLineBytes;
}

void PackTileRow(const float* x, int64_t k, void* out) {
  auto* to = static_cast<uint16_t*>(out);
  PackPairs(x, k, to);
  const int64_t padded = TileRowBytes(k) / 2;
  for (int64_t i = (k + 1) / 2 * 2; i < padded; ++i) to[i] = 0;
}

}  // namespace kf::cpu::KF_SIMD_NS
