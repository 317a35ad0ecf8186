#include "kernels/cpu/linear.h"

#include <algorithm>
#include <cstddef>

#include "kernels/core/status.h"
#include "kernels/cpu/row_blocks.h"

namespace kf::cpu {
namespace {

// Rows of x that a block takes: 16 register tiles, whose packed rows stay in
// the second-level cache beside the panels.
constexpr int64_t kBlockRows = 96;
// Panels of a block of a prompt: what a register tile takes.
constexpr int64_t kTilePanels = 4;
// A batch of decode steps is one row block, and its time goes into reading the
// weights: longer blocks let a thread fetch its next panels while it computes.
constexpr int64_t kLongestBlock = 64;
constexpr int64_t kBlocksPerThread = 2;

int64_t PanelsOfBlock(int64_t panels, int64_t row_blocks, int threads) {
  if (row_blocks > 1) return kTilePanels;
  const int64_t tiles =
      (panels / (kBlocksPerThread * threads) + kTilePanels / 2) / kTilePanels;
  return std::clamp(tiles * kTilePanels, kTilePanels, kLongestBlock);
}

// From here on widening the weights of a block once pays.
constexpr int64_t kWidenRows = 64;

// Values that take a thread about as long as a region costs, 2 us. Fewer than
// twice as many are done in place.
constexpr int64_t kRoundPiece = 16384;
constexpr int64_t kQuantizePiece = 8192;

// The rows of x in the form that the kernels of a format read.
struct PackedRows {
  const std::byte* data;
  int64_t row_bytes;
};

absl::StatusOr<PackedRows> PackRows(const LinearContext& context,
                                    const LinearArgs& args) {
  const int64_t in = args.weights.in();
  if (args.weights.format() == WeightFormat::kF32) {
    return PackedRows{reinterpret_cast<const std::byte*>(args.x),
                      in * static_cast<int64_t>(sizeof(float))};
  }
  const bool bf16 = args.weights.format() == WeightFormat::kBF16;
  const int64_t row_bytes = bf16 ? context.dense.bf16_row_bytes(in)
                                 : args.weights.steps() * kGroupRowBytes;
  const auto pack_row =
      bf16 ? context.dense.pack_row : context.groups.quantize_row;
  KF_ASSIGN_OR_RETURN(std::byte * packed,
                      context.scratch.Take<std::byte>(args.rows * row_bytes));
  const int64_t piece = bf16 ? kRoundPiece : kQuantizePiece;
  const int64_t pieces =
      std::clamp<int64_t>(args.rows * in / piece, 1, args.rows);
  context.pool.ParallelFor(pieces, [&](int64_t index, int) {
    const int64_t end = args.rows * (index + 1) / pieces;
    for (int64_t row = args.rows * index / pieces; row < end; ++row) {
      pack_row(args.x + row * in, in, packed + row * row_bytes);
    }
  });
  return PackedRows{packed, row_bytes};
}

using LinearKernel = void (*)(const LinearBlock& block);

LinearKernel KernelOf(const LinearContext& context, WeightFormat format) {
  switch (format) {
    case WeightFormat::kF32:
      return context.dense.linear_f32;
    case WeightFormat::kBF16:
      return context.dense.linear_bf16;
    case WeightFormat::kQ8:
      return context.groups.linear_q8;
    case WeightFormat::kQ4:
      return context.groups.linear_q4;
  }
  KF_CHECK(false);
}

}  // namespace

absl::Status RunLinear(const LinearContext& context, const LinearArgs& args) {
  const PackedLinear& w = args.weights;
  if (args.rows == 0) return absl::OkStatus();
  context.scratch.Reset();
  if (TakesRowBlocks(context, args)) return RunRowBlocks(context, args);
  KF_ASSIGN_OR_RETURN(const PackedRows x, PackRows(context, args));
  const int threads = context.pool.threads();
  float* widened = nullptr;
  int64_t widened_floats = 0;
  if (w.format() == WeightFormat::kBF16 && args.rows >= kWidenRows) {
    widened_floats = context.dense.widened_floats(w.in());
    if (widened_floats > 0) {
      KF_ASSIGN_OR_RETURN(
          widened, context.scratch.Take<float>(threads * widened_floats));
    }
  }
  const int64_t row_blocks = (args.rows + kBlockRows - 1) / kBlockRows;
  for (const PanelRun& run : w.runs()) {
    const int64_t block_panels = PanelsOfBlock(run.count, row_blocks, threads);
    const int64_t stripes = (run.count + block_panels - 1) / block_panels;
    const int64_t end =
        std::min((run.first + run.count) * kPanelColumns, w.out());
    const LinearKernel kernel = KernelOf(context, run.format);
    // Row blocks of one stripe follow each other: its panels are read from
    // memory once.
    context.pool.ParallelFor(
        stripes * row_blocks, [&](int64_t item, int worker) {
          const int64_t panel = run.first + item / row_blocks * block_panels;
          const int64_t row = item % row_blocks * kBlockRows;
          const int64_t column = panel * kPanelColumns;
          kernel({
              .panels = run.panel(panel),
              .panel_bytes = run.panel_bytes,
              .steps = w.steps(),
              .x = x.data + row * x.row_bytes,
              .x_row_bytes = x.row_bytes,
              .rows = std::min(kBlockRows, args.rows - row),
              .out = args.out + row * w.out() + column,
              .out_stride = w.out(),
              .columns = std::min(block_panels * kPanelColumns, end - column),
              .add = args.add,
              .widened = widened_floats > 0 ? widened + worker * widened_floats
                                            : nullptr,
          });
        });
  }
  return absl::OkStatus();
}

}  // namespace kf::cpu
