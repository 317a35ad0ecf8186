// Products of blocks of rows on tiles, two tiles of rows x two panels at a
// time.
//
// A pair of panels passes over all rows of the block before the next one: its
// lines come into the second-level cache while the pair before it is
// multiplied. Sums leave the tiles for a buffer in the first-level cache, and
// from there, a row or two between the products of each step, they go where
// they belong: the vector units and the stores to far memory work beside the
// tiles.
#include "kernels/cpu/amx_tiles.h"
#include "kernels/cpu/linear_tiles.h"
#include "kernels/cpu/pack_pairs.h"
#include "kernels/cpu/tile_kernels.h"
#include "kernels/cpu/vec.h"

namespace kf::cpu::KF_SIMD_NS {
namespace {

static_assert(kBlockTileRows == kTileHeight && kBlockPairs == kTilePairs);

constexpr int64_t kTileFloats = kTileHeight * kPanelColumns;

// Sums of two tiles of rows x two panels: upper left, upper right, lower left,
// lower right.
using Sums = float[4 * kTileFloats];

// Of row `row` of 32 in panel 0 or 1 of the two.
inline const float* SumsOf(const Sums& sums, int64_t row, int64_t panel) {
  return sums + (row / kTileHeight * 2 + panel) * kTileFloats +
         row % kTileHeight * kPanelColumns;
}

// Bytes of a tile of packed rows.
int64_t RowTileBytes(int64_t steps) { return steps * kTileLine; }

// Where the sums of a pass go in out = x W^T.
class StoreRows {
 public:
  StoreRows(const RowBlock& block, float* out, int64_t stride, bool add)
      : block_(block), out_(out), stride_(stride), add_(add) {}

  int64_t panel_pairs() const {
    const int64_t panels = (block_.columns + kPanelColumns - 1) / kPanelColumns;
    return (panels + 1) / 2;
  }
  // Of a last panel without a neighbour the two are the same.
  const char* panel(int64_t pair, int64_t which) const {
    const int64_t index = 2 * pair + which;
    const bool there = index * kPanelColumns < block_.columns;
    return static_cast<const char*>(block_.panels) +
           (there ? index : index - 1) * block_.panel_bytes;
  }

  void Begin(int64_t first_row, int64_t pair) {
    column_ = 2 * pair * kPanelColumns;
    to_ = out_ + first_row * stride_ + column_;
    rows_ = block_.rows - first_row;
  }
  [[gnu::always_inline]] void Row(const Sums& sums, int64_t row) const {
    if (row >= rows_) return;
    for (int64_t p = 0; p < 2; ++p) {
      const int64_t left = block_.columns - column_ - p * kPanelColumns;
      const VF sum = Load(SumsOf(sums, row, p));
      float* to = to_ + row * stride_ + p * kPanelColumns;
      if (left >= kPanelColumns) {
        Store(add_ ? Load(to) + sum : sum, to);
      } else if (left > 0) {
        StorePart(sum, left, add_, to);
      }
    }
  }

 private:
  const RowBlock& block_;
  float* out_;
  int64_t stride_;
  bool add_;
  float* to_ = nullptr;
  int64_t column_ = 0;
  int64_t rows_ = 0;
};

// Where they go in silu(gate) * up: a pair is a panel of each.
class ActivateRows {
 public:
  ActivateRows(const RowBlock& block, void* out)
      : block_(block), out_(static_cast<char*>(out)) {}

  int64_t panel_pairs() const { return block_.columns / 2 / kPanelColumns; }
  const char* panel(int64_t pair, int64_t which) const {
    return static_cast<const char*>(block_.panels) +
           (pair + which * panel_pairs()) * block_.panel_bytes;
  }

  // 16 columns are half of a packed row's step.
  void Begin(int64_t first_row, int64_t pair) {
    const int64_t tile_bytes = RowTileBytes(block_.columns / 4);
    to_ = out_ + first_row / kTileHeight * tile_bytes + pair / 2 * kTileBytes +
          pair % 2 * (kTileLine / 2);
    below_ = tile_bytes - kTileHeight * kTileLine;
  }
  [[gnu::always_inline]] void Row(const Sums& sums, int64_t row) const {
    float y[kPanelColumns];
    Store(SwiGluOf(Load(SumsOf(sums, row, 0)), Load(SumsOf(sums, row, 1))), y);
    PackPairs(y, kPanelColumns,
              reinterpret_cast<uint16_t*>(to_ + row * kTileLine +
                                          (row < kTileHeight ? 0 : below_)));
  }

 private:
  const RowBlock& block_;
  char* out_;
  char* to_ = nullptr;
  int64_t below_ = 0;  // from a tile's end to the next one's beginning
};

// What a pass fetches of the next pair of panels: its share of their lines.
class FetchPanels {
 public:
  FetchPanels(const char* left, const char* right, int64_t first, int64_t count)
      : left_(left + first), right_(right + first), end_(count) {}

  // GCC drops prefetches of functions that are not inlined.
  [[gnu::always_inline]] void Lines(int64_t until) {
    for (; at_ < until && at_ < end_; at_ += kLineBytes) {
      __builtin_prefetch(left_ + at_, 0, 2);
      __builtin_prefetch(right_ + at_, 0, 2);
    }
  }

 private:
  const char* left_;
  const char* right_;
  int64_t at_ = 0;
  int64_t end_;
};

// The sums of a pass that still wait to go where they belong.
template <typename Target>
struct Waiting {
  alignas(64) Sums sums;
  Target target;
  int64_t left = 0;  // rows
};

// One pass: x's two tiles of rows against two panels, into tiles 0 to 3, while
// `before` is finished. The rows come in as a stream that does not stay in the
// first-level cache: the next pass has others, but the same panels.
template <typename Target>
void Pass(const RowBlock& block,
          const char* x,
          const char* left,
          const char* right,
          FetchPanels fetch,
          int64_t fetch_bytes,
          Waiting<Target>& before) {
  const char* lower = x + RowTileBytes(block.steps);
  const int64_t steps = block.steps / kTilePairs;
  const int64_t rows_a_step = (before.left + steps - 1) / steps;
  int64_t row = 0;
  _tile_zero(0);
  _tile_zero(1);
  _tile_zero(2);
  _tile_zero(3);
  for (int64_t step = 0; step < steps; ++step) {
    const int64_t at = step * kTileBytes;
    _tile_stream_loadd(4, x + at, kTileLine);
    _tile_loadd(6, left + at, kTileLine);
    _tile_dpbf16ps(0, 4, 6);
    _tile_loadd(7, right + at, kTileLine);
    _tile_dpbf16ps(1, 4, 7);
    _tile_stream_loadd(5, lower + at, kTileLine);
    _tile_dpbf16ps(2, 5, 6);
    fetch.Lines((step + 1) * fetch_bytes);
    _tile_dpbf16ps(3, 5, 7);
    for (int64_t end = row + rows_a_step; row < end && row < before.left;
         ++row) {
      before.target.Row(before.sums, row);
    }
  }
}

void StoreTiles(Sums& sums) {
  _tile_stored(0, sums, kTileLine);
  _tile_stored(1, sums + kTileFloats, kTileLine);
  _tile_stored(2, sums + 2 * kTileFloats, kTileLine);
  _tile_stored(3, sums + 3 * kTileFloats, kTileLine);
  Settle();
}

int64_t RoundUp(int64_t value, int64_t unit) {
  return (value + unit - 1) / unit * unit;
}

template <typename Target>
void Run(const RowBlock& block, const Target& target) {
  constexpr int64_t kRows = kBlockRowPair;
  ConfigureTiles({kTileHeight, kTileHeight, kTileHeight, kTileHeight,
                  kTileHeight, kTileHeight, kTilePairs, kTilePairs});
  const int64_t pairs = target.panel_pairs();
  const int64_t passes = (block.rows + kRows - 1) / kRows;
  const int64_t share =
      RoundUp((block.panel_bytes + passes - 1) / passes, kLineBytes);
  const int64_t fetch_bytes =
      RoundUp(share / (block.steps / kTilePairs) + 1, kLineBytes);
  Waiting<Target> waiting[2] = {{.sums = {}, .target = target},
                                {.sums = {}, .target = target}};
  int turn = 0;
  for (int64_t pair = 0; pair < pairs; ++pair) {
    const char* left = target.panel(pair, 0);
    const char* right = target.panel(pair, 1);
    const bool last = pair + 1 == pairs;
    const char* next_left = last ? left : target.panel(pair + 1, 0);
    const char* next_right = last ? right : target.panel(pair + 1, 1);
    for (int64_t pass = 0; pass < passes; ++pass) {
      const auto* x = static_cast<const char*>(block.x) +
                      pass * 2 * RowTileBytes(block.steps);
      const int64_t before = pass * share;
      const int64_t first =
          before < block.panel_bytes ? before : block.panel_bytes;
      const int64_t rest = block.panel_bytes - first;
      Pass(block, x, left, right,
           FetchPanels(next_left, next_right, first,
                       last ? 0 : (rest < share ? rest : share)),
           fetch_bytes, waiting[1 - turn]);
      Waiting<Target>& done = waiting[turn];
      StoreTiles(done.sums);
      done.target.Begin(pass * kRows, pair);
      done.left = kRows;
      turn = 1 - turn;
    }
  }
  const Waiting<Target>& done = waiting[1 - turn];
  for (int64_t row = 0; row < done.left; ++row) {
    done.target.Row(done.sums, row);
  }
  _tile_release();
}

void Pack(const float* x, int64_t rows, int64_t k, void* out) {
  const int64_t steps = k / 2 / kTilePairs;
  auto* to = static_cast<char*>(out);
  for (int64_t row = 0; row < RoundUp(rows, kBlockRowPair); ++row) {
    char* line = to + row / kTileHeight * steps * kTileBytes +
                 row % kTileHeight * kTileLine;
    for (int64_t step = 0; step < steps; ++step, line += kTileBytes) {
      if (row < rows) {
        PackPairs(x + row * k + step * 2 * kTilePairs, 2 * kTilePairs,
                  reinterpret_cast<uint16_t*>(line));
      } else {
        __builtin_memset(line, 0, kTileLine);
      }
    }
  }
}

void LinearRows(const RowBlock& block,
                float* out,
                int64_t out_stride,
                bool add) {
  Run(block, StoreRows(block, out, out_stride, add));
}

void GateUpRows(const RowBlock& block, void* out) {
  Run(block, ActivateRows(block, out));
}

}  // namespace

extern const RowBlockKernels kRowBlockKernels;
const RowBlockKernels kRowBlockKernels = {
    .pack = Pack, .linear = LinearRows, .gate_up = GateUpRows};

}  // namespace kf::cpu::KF_SIMD_NS
