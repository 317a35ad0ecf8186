// How the kernels of all weight formats walk over a block of a product:
// register tiles of some rows x some panels, stripe by stripe. A Format says
// how a tile sums over K.
#pragma once

#include "kernels/cpu/dense_kernels.h"
#include "kernels/cpu/vec.h"

namespace kf::cpu::KF_SIMD_NS {
inline constexpr int kPanelVecs = static_cast<int>(kPanelColumns) / kLanes;

// Rows and panels of a register tile. AVX-512: 6 x 4 vectors are 24 of 32
// registers, the rest holds a step's weights and one broadcast. AVX2: 6 x 2 of
// 16. Few rows take more panels instead: as many accumulators hide the latency
// of the additions, and as many streams that of memory.
inline constexpr int kMaxRows = kVecBytes == 16 ? 2 : 6;
constexpr int PanelsFor(int rows) {
  return kVecBytes == 64 ? (rows <= 3 ? 8 : 4)
                         : (kVecBytes == 32 && rows <= 2 ? 4 / rows : 1);
}

namespace {

inline void StorePart(VF v, int64_t count, bool add, float* out) {
  float lane[kLanes];
  Store(v, lane);
  for (int64_t i = 0; i < count; ++i) out[i] = add ? out[i] + lane[i] : lane[i];
}

// The sums of rows [row, row + kRows) x panels [panel, ...) of the block.
template <int kRows, int kVecs>
inline void StoreTile(const LinearBlock& b,
                      int64_t row,
                      int64_t panel,
                      const VF (&acc)[kRows][kVecs]) {
  for (int r = 0; r < kRows; ++r) {
    for (int v = 0; v < kVecs; ++v) {
      const int64_t column = panel * kPanelColumns + v * kLanes;
      float* out = b.out + (row + r) * b.out_stride + column;
      if (column + kLanes <= b.columns) {
        Store(b.add ? Load(out) + acc[r][v] : acc[r][v], out);
      } else if (column < b.columns) {
        StorePart(acc[r][v], b.columns - column, b.add, out);
      }
    }
  }
}

// What a tile fetches into the cache while it computes: bytes from what it
// reads to that, by step.
struct FetchAhead {
  int64_t near = 0;  // before step `turn`
  int64_t turn = 0;
  int64_t rest = 0;  // 0: nothing new

  int64_t At(int64_t step) const { return step < turn ? near : rest; }
};

// From memory to where a tile is, in each of its panels.
inline constexpr int64_t kNearBytes = 2048;

// Of the tiles of a stripe whose next one begins `next` panels further on (0:
// there is none). Where a stripe is one tile, that comes from memory as it is
// computed: it fetches what it reaches soon, since what comes a stripe too
// early leaves the nearest cache again. Else the last tile, which reads from
// the cache, fetches all of the next stripe, so that memory and arithmetic work
// at the same time.
inline FetchAhead FetchOf(const LinearBlock& b,
                          bool only_tile,
                          bool last_tile,
                          int64_t next) {
  const int64_t next_bytes = next * b.panel_bytes;
  if (!only_tile) return {.rest = last_tile ? next_bytes : 0};
  const int64_t steps_ahead = kNearBytes / (b.panel_bytes / b.steps);
  return {.near = kNearBytes,
          .turn = b.steps - steps_ahead,
          .rest = next > 0 ? kNearBytes + next_bytes - b.panel_bytes : 0};
}

// Format::Tile<kRows, kPanels>(block, row, panel, ahead) computes and stores a
// tile.
template <typename Format, int kPanels, int kRows = kMaxRows>
void TileOfRows(const LinearBlock& b,
                int64_t row,
                int64_t rows,
                int64_t panel,
                const FetchAhead& ahead) {
  if constexpr (kRows > 1) {
    if (rows < kRows) {
      TileOfRows<Format, kPanels, kRows - 1>(b, row, rows, panel, ahead);
      return;
    }
  }
  if constexpr (kPanels <= PanelsFor(kRows)) {
    Format::template Tile<kRows, kPanels>(b, row, panel, ahead);
  } else {
    for (int p = 0; p < kPanels; p += PanelsFor(kRows)) {
      Format::template Tile<kRows, PanelsFor(kRows)>(b, row, panel + p, ahead);
    }
  }
}

// All row tiles over kPanels panels: their weights come from memory once and
// then from the cache.
template <typename Format, int kPanels>
void Stripe(const LinearBlock& b, int64_t panel, int64_t panels) {
  // Tiles of about equal height: 7 rows are 4 + 3, since a tile of one row
  // takes as long to load its weights as one of six.
  const int64_t tiles = (b.rows + kMaxRows - 1) / kMaxRows;
  const int64_t next = panel + kPanels < panels ? kPanels : 0;
  int64_t row = 0;
  for (int64_t t = 0; t < tiles; ++t) {
    const int64_t rows = (b.rows - row + tiles - t - 1) / (tiles - t);
    TileOfRows<Format, kPanels>(b, row, rows, panel,
                                FetchOf(b, tiles == 1, t + 1 == tiles, next));
    row += rows;
  }
}

template <typename Format>
void Linear(const LinearBlock& b) {
  constexpr int kWide = PanelsFor(1);
  constexpr int kNarrow = PanelsFor(kMaxRows);
  const int64_t panels = (b.columns + kPanelColumns - 1) / kPanelColumns;
  int64_t panel = 0;
  if (b.rows <= 3) {
    for (; panel + kWide <= panels; panel += kWide) {
      Stripe<Format, kWide>(b, panel, panels);
    }
  }
  for (; panel + kNarrow <= panels; panel += kNarrow) {
    Stripe<Format, kNarrow>(b, panel, panels);
  }
  for (; panel < panels; ++panel) Stripe<Format, 1>(b, panel, panels);
}

}  // namespace
}  // namespace kf::cpu::KF_SIMD_NS
