#include "kernels/cpu/row_blocks.h"

#include <algorithm>
#include <cstddef>

#include "kernels/core/status.h"

namespace kf::cpu {
namespace {

// With fewer rows a product's time goes into reading the weights, which
// LinearBlock's kernels do better.
constexpr int64_t kFewestRows = 64;
// Rows of a block, if their bytes stay within kBlockBytes: less than a core's
// second-level cache, which has 2 MiB wherever there are tiles, since the
// panels pass through it, too.
constexpr int64_t kMostRows = 256;
constexpr int64_t kBlockBytes = 1280 * 1024;
// A thread that has a block of its own reads all weights for it: for fewer rows
// that costs more than it saves.
constexpr int64_t kFewestOwnRows = 128;
// Rows of the blocks that come last.
constexpr int64_t kShortBlock = 64;
// Items a thread, where threads share the rows: the last ones even out.
constexpr int64_t kStripesPerThread = 4;

// The rows of a block that take `values` of bf16 each; 0: the cache holds too
// few to be worth it.
int64_t RowsOfBlock(int64_t values) {
  const int64_t rows = std::min(kMostRows, kBlockBytes / (values * 2)) /
                       kBlockRowPair * kBlockRowPair;
  return rows < kFewestOwnRows ? 0 : rows;
}

bool InWholeTiles(const PackedLinear& w) {
  return w.format() == WeightFormat::kBF16 && w.runs().size() == 1 &&
         w.in() % (2 * kBlockPairs) == 0;
}

// Whether there are enough rows for a block a thread.
bool RowsForAll(int64_t rows, int threads) {
  return rows >= kFewestOwnRows * threads;
}

// Rows in blocks of whole pairs of tiles: `large` equal ones, then small ones.
struct RowCut {
  int64_t rows;
  int64_t row_pairs;
  int64_t large;
  int64_t large_pairs;  // of each
  int64_t small_pairs;  // the last one may have fewer

  int64_t blocks() const {
    return large +
           (row_pairs - large * large_pairs + small_pairs - 1) / small_pairs;
  }
  int64_t first_row(int64_t block) const {
    const int64_t pair =
        block <= large ? block * large_pairs
                       : large * large_pairs + (block - large) * small_pairs;
    return std::min(pair * kBlockRowPair, rows);
  }
  int64_t longest() const {
    return std::max(large_pairs, small_pairs) * kBlockRowPair;
  }
};

// For threads with blocks of their own: half of the rows in blocks that are as
// long as may be, the rest in short ones. A machine's cores are not equally
// fast, least of all where others use them too: who is done first goes on.
RowCut CutOwned(int64_t rows, int64_t most, int threads) {
  const int64_t row_pairs = (rows + kBlockRowPair - 1) / kBlockRowPair;
  const int64_t half = row_pairs / 2;
  const int64_t large_pairs =
      std::clamp<int64_t>(half / threads, 1, most / kBlockRowPair);
  return {.rows = rows,
          .row_pairs = row_pairs,
          .large = half / large_pairs,
          .large_pairs = large_pairs,
          .small_pairs = kShortBlock / kBlockRowPair};
}

// For rows that the threads share, each with columns of its own.
RowCut CutShared(int64_t rows, int64_t most) {
  const int64_t row_pairs = (rows + kBlockRowPair - 1) / kBlockRowPair;
  const int64_t blocks = (rows + most - 1) / most;
  return {.rows = rows,
          .row_pairs = row_pairs,
          .large = 0,
          .large_pairs = 0,
          .small_pairs = (row_pairs + blocks - 1) / blocks};
}

RowBlock BlockOf(const PackedLinear& w,
                 const std::byte* x,
                 int64_t rows,
                 int64_t first_panel,
                 int64_t columns) {
  const PanelRun& run = w.runs().front();
  return {.x = x,
          .rows = rows,
          .steps = w.steps(),
          .panels = run.panel(first_panel),
          .panel_bytes = run.panel_bytes,
          .columns = columns};
}

}  // namespace

bool TakesRowBlocks(const LinearContext& context, const LinearArgs& args) {
  return context.row_blocks != nullptr && args.rows >= kFewestRows &&
         InWholeTiles(args.weights) && RowsOfBlock(args.weights.in()) > 0;
}

// Each thread has blocks of its own, for all columns, if there are rows enough
// for all; else the threads share blocks, and the columns are cut in stripes.
absl::Status RunRowBlocks(const LinearContext& context,
                          const LinearArgs& args) {
  const PackedLinear& w = args.weights;
  const RowBlockKernels& kernels = *context.row_blocks;
  const int threads = context.pool.threads();
  const bool owned = RowsForAll(args.rows, threads);
  const int64_t most = RowsOfBlock(w.in());
  const RowCut cut =
      owned ? CutOwned(args.rows, most, threads) : CutShared(args.rows, most);
  const int64_t panels = w.runs().front().count;
  const int64_t panel_pairs = (panels + 1) / 2;
  const int64_t stripes =
      owned ? 1 : std::min(kStripesPerThread * threads, panel_pairs);
  const int64_t pair_bytes = RowBlockBytes(kBlockRowPair, w.in());
  KF_ASSIGN_OR_RETURN(std::byte * packed, context.scratch.Take<std::byte>(
                                              cut.row_pairs * pair_bytes));
  const auto pack = [&](int64_t row, int64_t rows) {
    kernels.pack(args.x + row * w.in(), rows, w.in(),
                 packed + row / kBlockRowPair * pair_bytes);
  };
  if (!owned) {
    context.pool.ParallelFor(cut.row_pairs, [&](int64_t pair, int) {
      const int64_t row = pair * kBlockRowPair;
      pack(row, std::min(kBlockRowPair, args.rows - row));
    });
  }
  context.pool.ParallelFor(cut.blocks() * stripes, [&](int64_t item, int) {
    const int64_t block = item / stripes;
    const int64_t stripe = item % stripes;
    const int64_t row = cut.first_row(block);
    const int64_t rows = cut.first_row(block + 1) - row;
    if (owned) pack(row, rows);
    // Pairs of panels stay together.
    const int64_t first = panel_pairs * stripe / stripes * 2;
    const int64_t column = first * kPanelColumns;
    const int64_t end = std::min(
        panel_pairs * (stripe + 1) / stripes * 2 * kPanelColumns, w.out());
    kernels.linear(BlockOf(w, packed + row / kBlockRowPair * pair_bytes, rows,
                           first, end - column),
                   args.out + row * w.out() + column, w.out(), args.add);
  });
  return absl::OkStatus();
}

bool TakesGated(const LinearContext& context, const GatedArgs& args) {
  return context.row_blocks != nullptr &&
         RowsForAll(args.rows, context.pool.threads()) &&
         InWholeTiles(args.gate_up) && InWholeTiles(args.down) &&
         RowsOfBlock(args.gate_up.in() + args.down.in()) > 0;
}

absl::Status RunGated(const LinearContext& context, const GatedArgs& args) {
  const PackedLinear& gate_up = args.gate_up;
  const PackedLinear& down = args.down;
  KF_CHECK(gate_up.out() == 2 * down.in());
  const RowBlockKernels& kernels = *context.row_blocks;
  const int threads = context.pool.threads();
  const int64_t hidden = gate_up.in();
  const RowCut cut =
      CutOwned(args.rows, RowsOfBlock(hidden + down.in()), threads);
  const int64_t x_bytes = RowBlockBytes(cut.longest(), hidden);
  const int64_t bytes = x_bytes + RowBlockBytes(cut.longest(), down.in());
  KF_ASSIGN_OR_RETURN(std::byte * packed,
                      context.scratch.Take<std::byte>(threads * bytes));
  context.pool.ParallelFor(cut.blocks(), [&](int64_t block, int worker) {
    const int64_t row = cut.first_row(block);
    const int64_t rows = cut.first_row(block + 1) - row;
    std::byte* x = packed + worker * bytes;
    std::byte* activated = x + x_bytes;
    kernels.pack(args.x + row * hidden, rows, hidden, x);
    kernels.gate_up(BlockOf(gate_up, x, rows, 0, gate_up.out()), activated);
    kernels.linear(BlockOf(down, activated, rows, 0, down.out()),
                   args.inout + row * down.out(), down.out(), /*add=*/true);
  });
  return absl::OkStatus();
}

}  // namespace kf::cpu
