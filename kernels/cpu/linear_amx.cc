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

// Steps from a tile's load back to its prefetch. A load from memory takes as
// long as one to two steps; lines that come much earlier leave the first-level
// cache again, since it is as large as the rows of x and a panel.
constexpr int64_t kStepsAhead = 2;

// A block's rows in tiles of the same height, so that one configuration serves
// all. The last tile ends with the rows and may start in the one before it:
// what both have is computed twice, to the same bits.
struct RowTiles {
  int64_t rows;
  int64_t count;
  int64_t height;

  int64_t first_row(int64_t tile) const {
    return tile * height < rows - height ? tile * height : rows - height;
  }
  // Of a tile's rows, those of the tile before.
  int64_t shared(int64_t tile) const { return tile * height - first_row(tile); }
};

// Up to three tiles are done in one pass over the weights, more two by two.
constexpr int64_t kTilesOfOnePass = 3;

RowTiles CutRows(int64_t rows) {
  int64_t count = (rows + kTileHeight - 1) / kTileHeight;
  if (count > kTilesOfOnePass) count += count % 2;
  return {rows, count, (rows + count - 1) / count};
}

// Panels side by side that share the loads of x.
struct PanelGroup {
  int64_t first;
  int64_t pass;    // over its rows, from 0
  int64_t passes;  // until all rows are done
  bool last;       // of the block
};

template <int kTile>
void StoreTile(float* to, int64_t row_bytes) {
  static_assert(kTile >= 0 && kTile < 6);
  // The intrinsic takes nothing but a literal.
  if constexpr (kTile == 0) _tile_stored(0, to, row_bytes);
  if constexpr (kTile == 1) _tile_stored(1, to, row_bytes);
  if constexpr (kTile == 2) _tile_stored(2, to, row_bytes);
  if constexpr (kTile == 3) _tile_stored(3, to, row_bytes);
  if constexpr (kTile == 4) _tile_stored(4, to, row_bytes);
  if constexpr (kTile == 5) _tile_stored(5, to, row_bytes);
  Settle();
}

// Adds or stores the sums in kTile, of a tile of rows; `column` of the block.
template <int kTile>
void StoreSums(const LinearBlock& b,
               const RowTiles& tiles,
               int64_t row_tile,
               int64_t column) {
  float* out = b.out + tiles.first_row(row_tile) * b.out_stride + column;
  const bool whole = column + kPanelColumns <= b.columns;
  if (whole && !b.add) {
    StoreTile<kTile>(out, b.out_stride * static_cast<int64_t>(sizeof(float)));
    return;
  }
  alignas(64) float sums[kTileHeight * kPanelColumns];
  StoreTile<kTile>(sums, kLineBytes);
  const int64_t first = tiles.shared(row_tile);
  out += first * b.out_stride;
  for (int64_t r = first; r < tiles.height; ++r, out += b.out_stride) {
    const VF sum = Load(sums + r * kPanelColumns);
    if (whole) {
      Store(Load(out) + sum, out);
    } else {
      StorePart(sum, b.columns - column, b.add, out);
    }
  }
}

// Fetches what of `panels` will be read: in the only pass over a group what the
// loads themselves reach soon, into the nearest cache; else in each pass a part
// of the next group, into the second, from where the first pass reads it. A
// step's lines are named a few at a time, between its products: the loads of x
// would wait behind all of them. GCC takes a function that only prefetches for
// one without effects, and drops the calls, unless it is inlined first.
template <int kPanels>
class StepFetch {
 public:
  [[gnu::always_inline]] StepFetch(const LinearBlock& b,
                                   const PanelGroup& group,
                                   const char* const (&panels)[kPanels],
                                   int64_t step)
      : panels_(panels), near_(group.passes == 1) {
    const int64_t next_group = kPanels * b.panel_bytes;
    if (near_) {
      offset_ = (step + kStepsAhead * kTilePairs) * kLineBytes;
      if (offset_ >= b.panel_bytes) {
        if (group.last) return;
        const int64_t after = b.panel_bytes % kTileBytes;
        offset_ +=
            next_group - b.panel_bytes - (after > 0 ? kTileBytes - after : 0);
      }
      end_ = kTilePairs;
      return;
    }
    if (group.last) return;
    offset_ = step * kLineBytes + next_group;
    line_ = group.pass * kTilePairs / group.passes;
    end_ = (group.pass + 1) * kTilePairs / group.passes;
  }

  // Up to `lines` of each panel.
  [[gnu::always_inline]] void Lines(int lines) {
    for (int i = 0; i < lines && line_ < end_; ++i, ++line_) {
      for (int p = 0; p < kPanels; ++p) {
        const char* at = panels_[p] + offset_ + line_ * kLineBytes;
        if (near_) {
          __builtin_prefetch(at);
        } else {
          __builtin_prefetch(at, 0, 2);
        }
      }
    }
  }

 private:
  const char* const (&panels_)[kPanels];
  const bool near_;
  int64_t offset_ = 0;
  int64_t line_ = 0;
  int64_t end_ = 0;
};

// Adds a step's products of three row tiles, which leaves one tile for x and
// one for the weights. `x` and `w` are where the step begins.
template <int kPanels>
[[gnu::always_inline]] inline void AddStep(const char* const (&x)[3],
                                           const char* const (&w)[kPanels],
                                           int64_t x_row_bytes,
                                           StepFetch<kPanels>& fetch) {
  constexpr int kLines = kPanels == 2 ? 3 : 6;  // of 16, after 6 products or 3
  _tile_loadd(7, w[0], kLineBytes);
  _tile_loadd(6, x[0], x_row_bytes);
  _tile_dpbf16ps(0, 6, 7);
  fetch.Lines(kLines);
  _tile_loadd(6, x[1], x_row_bytes);
  _tile_dpbf16ps(2, 6, 7);
  fetch.Lines(kLines);
  _tile_loadd(6, x[2], x_row_bytes);
  _tile_dpbf16ps(4, 6, 7);
  fetch.Lines(kLines);
  if constexpr (kPanels == 2) {
    _tile_loadd(7, w[1], kLineBytes);
    _tile_dpbf16ps(5, 6, 7);
    fetch.Lines(kLines);
    _tile_loadd(6, x[1], x_row_bytes);
    _tile_dpbf16ps(3, 6, 7);
    fetch.Lines(kLines);
    _tile_loadd(6, x[0], x_row_bytes);
    _tile_dpbf16ps(1, 6, 7);
    fetch.Lines(kLines);
  }
}

// The same of one or two row tiles.
template <int kRowTiles, int kPanels>
requires(kRowTiles <= 2) [[gnu::always_inline]] inline void AddStep(
    const char* const (&x)[kRowTiles],
    const char* const (&w)[kPanels],
    int64_t x_row_bytes,
    StepFetch<kPanels>& fetch) {
  constexpr int kLines = kPanels == 1 ? 8 : 4;
  _tile_loadd(4, x[0], x_row_bytes);
  _tile_loadd(6, w[0], kLineBytes);
  _tile_dpbf16ps(0, 4, 6);
  fetch.Lines(kLines);
  if constexpr (kPanels >= 2) {
    _tile_loadd(7, w[1], kLineBytes);
    _tile_dpbf16ps(1, 4, 7);
    fetch.Lines(kLines);
  }
  if constexpr (kPanels == 4) {
    _tile_loadd(6, w[2], kLineBytes);
    _tile_dpbf16ps(2, 4, 6);
    fetch.Lines(kLines);
    _tile_loadd(7, w[3], kLineBytes);
    _tile_dpbf16ps(3, 4, 7);
  }
  if constexpr (kRowTiles == 2) {
    _tile_loadd(5, x[1], x_row_bytes);
    _tile_dpbf16ps(2, 5, 6);
    fetch.Lines(kLines);
    if constexpr (kPanels == 2) _tile_dpbf16ps(3, 5, 7);
  }
  fetch.Lines(kTilePairs);
}

// Stores the sums of `Tiles`, column `column` of the block first.
template <int kRowTiles, int kPanels>
void StoreAll(const LinearBlock& b,
              const RowTiles& tiles,
              int64_t row_tile,
              int64_t column) {
  StoreSums<0>(b, tiles, row_tile, column);
  if constexpr (kPanels >= 2) {
    StoreSums<1>(b, tiles, row_tile, column + kPanelColumns);
  }
  if constexpr (kPanels == 4) {
    StoreSums<2>(b, tiles, row_tile, column + 2 * kPanelColumns);
    StoreSums<3>(b, tiles, row_tile, column + 3 * kPanelColumns);
  }
  if constexpr (kRowTiles >= 2) {
    StoreSums<2>(b, tiles, row_tile + 1, column);
    if constexpr (kPanels == 2) {
      StoreSums<3>(b, tiles, row_tile + 1, column + kPanelColumns);
    }
  }
  if constexpr (kRowTiles == 3) {
    StoreSums<4>(b, tiles, row_tile + 2, column);
    if constexpr (kPanels == 2) {
      StoreSums<5>(b, tiles, row_tile + 2, column + kPanelColumns);
    }
  }
}

// Sums of one row tile x 1, 2 or 4 panels (tiles 0 to 3), of two x 1 or 2 (the
// second's in 2 and 3), or of three x 1 or 2 (the third's in 4 and 5).
template <int kRowTiles, int kPanels>
void Tiles(const LinearBlock& b,
           const PanelGroup& group,
           const RowTiles& tiles,
           int64_t row_tile) {
  static_assert(kRowTiles <= 3 && kPanels <= (kRowTiles == 1 ? 4 : 2));
  const char* rows[kRowTiles];
  for (int r = 0; r < kRowTiles; ++r) {
    rows[r] = static_cast<const char*>(b.x) +
              tiles.first_row(row_tile + r) * b.x_row_bytes;
  }
  const char* panels[kPanels];
  for (int p = 0; p < kPanels; ++p) {
    panels[p] =
        static_cast<const char*>(b.panels) + (group.first + p) * b.panel_bytes;
  }
  alignas(64) char rest[kPanels * kTileBytes];
  _tile_zero(0);
  _tile_zero(1);
  _tile_zero(2);
  _tile_zero(3);
  if constexpr (kRowTiles == 3) {
    _tile_zero(4);
    _tile_zero(5);
  }
  for (int64_t step = 0; step < b.steps; step += kTilePairs) {
    StepFetch<kPanels> fetch(b, group, panels, step);
    const char* x[kRowTiles];
    for (int r = 0; r < kRowTiles; ++r) x[r] = rows[r] + step * 4;
    const char* w[kPanels];
    for (int p = 0; p < kPanels; ++p) w[p] = panels[p] + step * kLineBytes;
    const int64_t pairs = b.steps - step;
    if (pairs < kTilePairs) {
      // What follows a panel's end is another's, and 0 times it may be NaN.
      const auto bytes = static_cast<unsigned long>(pairs * kLineBytes);
      __builtin_memset(rest, 0, sizeof(rest));
      for (int p = 0; p < kPanels; ++p) {
        __builtin_memcpy(rest + p * kTileBytes, w[p], bytes);
        w[p] = rest + p * kTileBytes;
      }
      Settle();
    }
    AddStep(x, w, b.x_row_bytes, fetch);
  }
  StoreAll<kRowTiles, kPanels>(b, tiles, row_tile, group.first * kPanelColumns);
}

// All panels, kPanels at a time, for all rows.
template <int kRowTiles, int kPanels>
void Groups(const LinearBlock& b, const RowTiles& tiles) {
  const int64_t panels = (b.columns + kPanelColumns - 1) / kPanelColumns;
  PanelGroup group = {
      .first = 0, .pass = 0, .passes = tiles.count / kRowTiles, .last = false};
  const auto rows = [&]<int kCount>() {
    group.last = group.first + kCount >= panels;
    for (group.pass = 0; group.pass < group.passes; ++group.pass) {
      Tiles<kRowTiles, kCount>(b, group, tiles, group.pass * kRowTiles);
    }
    group.first += kCount;
  };
  while (group.first + kPanels <= panels) rows.template operator()<kPanels>();
  while (group.first < panels) rows.template operator()<1>();
}

}  // namespace

// Few rows leave tiles for more panels, whose lines are as many more streams
// from memory.
void LinearTiles(const LinearBlock& b) {
  const RowTiles tiles = CutRows(b.rows);
  const int64_t h = tiles.height;
  if (tiles.count == 3) {
    ConfigureTiles({h, h, h, h, h, h, h, kTilePairs});
    Groups<3, 2>(b, tiles);
  } else {
    ConfigureTiles({h, h, h, h, h, h, kTilePairs, kTilePairs});
    if (tiles.count == 1) {
      Groups<1, 4>(b, tiles);
    } else {
      Groups<2, 2>(b, tiles);
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
