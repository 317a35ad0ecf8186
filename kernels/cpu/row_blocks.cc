#include "kernels/cpu/row_blocks.h"

#include <algorithm>
#include <cstddef>

#include "kernels/core/status.h"

namespace kf::cpu {
namespace {

// With fewer rows a product's time goes into reading the weights, which
// LinearBlock's kernels do better.
constexpr int64_t kFewestRows = 64;
// Rows of a block, if their bytes stay within kBlockBytes: less than a
// second-level cache, which has 2 MiB wherever there are tiles, since the
// panels pass through it, too.
constexpr int64_t kMostRows = 256;
constexpr int64_t kBlockBytes = 1280 * 1024;
// Shorter blocks read the weights too often.
constexpr int64_t kShortestBlock = 128;

// How many steps of rows a block may have whose rows take `values` of bf16; 0:
// too few to be worth it.
int64_t StepsOfBlock(int64_t values) {
  const int64_t rows = std::min(kMostRows, kBlockBytes / (values * 2)) /
                       kBlockRowStep * kBlockRowStep;
  return rows < kShortestBlock ? 0 : rows / kBlockRowStep;
}

int64_t StepsOfRows(int64_t rows) {
  return (rows + kBlockRowStep - 1) / kBlockRowStep;
}

bool InWholeSteps(const PackedLinear& w) {
  return w.format() == WeightFormat::kBF16 && w.runs().size() == 1 &&
         w.in() % (2 * kBlockSteps) == 0;
}

// Rows in blocks of about equal length, columns in stripes.
struct RowCut {
  int64_t rows;
  int64_t row_steps;
  int64_t blocks;

  int64_t first_row(int64_t block) const {
    return std::min(row_steps * block / blocks * kBlockRowStep, rows);
  }
  int64_t longest() const {
    return (row_steps + blocks - 1) / blocks * kBlockRowStep;
  }
};

// As many blocks a thread for all threads, if there are two steps for each.
RowCut CutRows(int64_t rows, int64_t most_steps, int threads) {
  const int64_t steps = StepsOfRows(rows);
  const int64_t owners = steps >= int64_t{2} * threads ? threads : 1;
  const int64_t blocks =
      owners * ((steps + owners * most_steps - 1) / (owners * most_steps));
  return {rows, steps, std::min(blocks, steps)};
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
         InWholeSteps(args.weights) && StepsOfBlock(args.weights.in()) > 0;
}

absl::Status RunRowBlocks(const LinearContext& context,
                          const LinearArgs& args) {
  const PackedLinear& w = args.weights;
  const RowBlockKernels& kernels = *context.row_blocks;
  const int threads = context.pool.threads();
  const RowCut cut = CutRows(args.rows, StepsOfBlock(w.in()), threads);
  const int64_t panels = w.runs().front().count;
  const int64_t stripes =
      std::min((threads + cut.blocks - 1) / cut.blocks, (panels + 1) / 2);
  const int64_t bytes = RowBlockBytes(cut.longest(), w.in());
  KF_ASSIGN_OR_RETURN(std::byte * packed,
                      context.scratch.Take<std::byte>(threads * bytes));
  context.pool.ParallelFor(cut.blocks * stripes, [&](int64_t item, int worker) {
    const int64_t block = item / stripes;
    const int64_t stripe = item % stripes;
    const int64_t row = cut.first_row(block);
    const int64_t rows = cut.first_row(block + 1) - row;
    // Pairs of panels stay together.
    const int64_t first = (panels + 1) / 2 * stripe / stripes * 2;
    const int64_t column = first * kPanelColumns;
    const int64_t end = std::min(
        (panels + 1) / 2 * (stripe + 1) / stripes * 2 * kPanelColumns, w.out());
    std::byte* x = packed + worker * bytes;
    kernels.pack(args.x + row * w.in(), rows, w.in(), x);
    kernels.linear(BlockOf(w, x, rows, first, end - column),
                   args.out + row * w.out() + column, w.out(), args.add);
  });
  return absl::OkStatus();
}

bool TakesFeedForward(const LinearContext& context, const FfnArgs& args) {
  const int threads = context.pool.threads();
  return context.row_blocks != nullptr && args.rows >= kFewestRows &&
         StepsOfRows(args.rows) >= int64_t{2} * threads &&
         InWholeSteps(args.gate_up) && InWholeSteps(args.down) &&
         StepsOfBlock(args.gate_up.in() + args.down.in()) > 0;
}

absl::Status RunFeedForward(const LinearContext& context, const FfnArgs& args) {
  const PackedLinear& gate_up = args.gate_up;
  const PackedLinear& down = args.down;
  KF_CHECK(gate_up.out() == 2 * down.in());
  const RowBlockKernels& kernels = *context.row_blocks;
  const int threads = context.pool.threads();
  const int64_t hidden = gate_up.in();
  const RowCut cut =
      CutRows(args.rows, StepsOfBlock(hidden + down.in()), threads);
  const int64_t x_bytes = RowBlockBytes(cut.longest(), hidden);
  const int64_t bytes = x_bytes + RowBlockBytes(cut.longest(), down.in());
  context.scratch.Reset();
  KF_ASSIGN_OR_RETURN(std::byte * packed,
                      context.scratch.Take<std::byte>(threads * bytes));
  context.pool.ParallelFor(cut.blocks, [&](int64_t block, int worker) {
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
