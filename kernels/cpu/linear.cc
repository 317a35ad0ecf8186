#include "kernels/cpu/linear.h"

#include <algorithm>
#include <cstddef>
#include <vector>

#include "kernels/core/bf16.h"
#include "kernels/core/dtype.h"
#include "kernels/core/status.h"

namespace kf::cpu {
namespace {

// Columns of W dequantised at a time: a multiple of every type's block.
constexpr int64_t kChunk = 1024;

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
constexpr int64_t kWidenRows = 24;

// Below this many values a region costs more than rounding them in place.
constexpr int64_t kPackInline = 16384;

// Row `index` of the stacked matrices.
const std::byte* RowOf(std::span<const WeightView> stacked,
                       int64_t index,
                       DType* type) {
  for (const WeightView& view : stacked) {
    if (index < view.rows) {
      const BlockLayout layout = LayoutOf(view.type);
      *type = view.type;
      return view.data + index * (view.cols / layout.elements * layout.bytes);
    }
    index -= view.rows;
  }
  KF_CHECK(false);
}

// `values` is [16][kChunk], columns [first, first + count) of a panel's rows.
void StoreF32(const float* values, int64_t first, int64_t count, float* panel) {
  for (int64_t k = 0; k < count; ++k) {
    float* line = panel + (first + k) * kPanelColumns;
    for (int64_t c = 0; c < kPanelColumns; ++c) {
      line[c] = values[c * kChunk + k];
    }
  }
}

// kChunk is even, so a pair never straddles two chunks.
void StoreBf16(const float* values, int64_t first, int64_t count, Bf16* panel) {
  for (int64_t k = 0; k < count; k += 2) {
    Bf16* line = panel + (first + k) * kPanelColumns;
    for (int64_t c = 0; c < kPanelColumns; ++c) {
      const float* pair = values + c * kChunk + k;
      line[2 * c] = FloatToBf16(pair[0]);
      line[2 * c + 1] = k + 1 < count ? FloatToBf16(pair[1]) : Bf16{0};
    }
  }
}

}  // namespace

absl::StatusOr<std::unique_ptr<PackedLinear>> PackedLinear::Create(
    std::span<const WeightView> stacked,
    WeightFormat format,
    ThreadPool& pool) {
  KF_CHECK(!stacked.empty());
  const int64_t in = stacked[0].cols;
  int64_t out = 0;
  for (const WeightView& view : stacked) {
    const BlockLayout layout = LayoutOf(view.type);
    KF_CHECK(layout.elements > 0 && view.data != nullptr);
    KF_CHECK(view.rows > 0 && view.cols == in && in > 0);
    KF_CHECK(in % layout.elements == 0);
    out += view.rows;
  }
  std::unique_ptr<PackedLinear> packed(new PackedLinear(in, out, format));
  KF_ASSIGN_OR_RETURN(
      packed->panels_,
      AlignedBytes::Allocate(
          static_cast<size_t>(packed->panel_count() * packed->panel_bytes()),
          "linear weights"));
  std::vector<float> chunks(
      static_cast<size_t>(pool.threads() * kPanelColumns * kChunk));
  pool.ParallelFor(packed->panel_count(), [&](int64_t p, int worker) {
    float* values = chunks.data() + worker * kPanelColumns * kChunk;
    for (int64_t first = 0; first < in; first += kChunk) {
      const int64_t count = std::min(kChunk, in - first);
      for (int64_t c = 0; c < kPanelColumns; ++c) {
        const int64_t row = p * kPanelColumns + c;
        float* to = values + c * kChunk;
        if (row >= out) {
          std::fill_n(to, count, 0.0F);
          continue;
        }
        DType type;
        const std::byte* from = RowOf(stacked, row, &type);
        const BlockLayout layout = LayoutOf(type);
        Dequantize(type, from + first / layout.elements * layout.bytes, count,
                   to);
      }
      if (format == WeightFormat::kF32) {
        StoreF32(values, first, count,
                 reinterpret_cast<float*>(packed->panel(p)));
      } else {
        StoreBf16(values, first, count,
                  reinterpret_cast<Bf16*>(packed->panel(p)));
      }
    }
  });
  return packed;
}

absl::Status RunLinear(const DenseKernels& kernels,
                       ThreadPool& pool,
                       ScratchArena& scratch,
                       const LinearArgs& args) {
  const PackedLinear& w = args.weights;
  if (args.rows == 0) return absl::OkStatus();
  const auto* x = reinterpret_cast<const std::byte*>(args.x);
  int64_t x_row_bytes = w.in() * static_cast<int64_t>(sizeof(float));
  float* widened = nullptr;
  int64_t widened_floats = 0;
  if (w.format() == WeightFormat::kBF16) {
    const int64_t row_bytes = kernels.bf16_row_bytes(w.in());
    scratch.Reset();
    KF_ASSIGN_OR_RETURN(std::byte * packed,
                        scratch.Take<std::byte>(args.rows * row_bytes));
    const auto pack = [&](int64_t row, int) {
      kernels.pack_row(args.x + row * w.in(), w.in(), packed + row * row_bytes);
    };
    if (args.rows * w.in() <= kPackInline) {
      for (int64_t row = 0; row < args.rows; ++row) pack(row, 0);
    } else {
      pool.ParallelFor(args.rows, pack);
    }
    if (args.rows >= kWidenRows) {
      widened_floats = kernels.widened_floats(w.in());
    }
    if (widened_floats > 0) {
      KF_ASSIGN_OR_RETURN(widened,
                          scratch.Take<float>(pool.threads() * widened_floats));
    }
    x = packed;
    x_row_bytes = row_bytes;
  }
  const int64_t panels = w.panel_count();
  const int64_t row_blocks = (args.rows + kBlockRows - 1) / kBlockRows;
  const int64_t block_panels =
      PanelsOfBlock(panels, row_blocks, pool.threads());
  const int64_t stripes = (panels + block_panels - 1) / block_panels;
  const auto linear = w.format() == WeightFormat::kF32 ? kernels.linear_f32
                                                       : kernels.linear_bf16;
  // Row blocks of one stripe follow each other: its panels are read from memory
  // once.
  pool.ParallelFor(stripes * row_blocks, [&](int64_t item, int worker) {
    const int64_t panel = item / row_blocks * block_panels;
    const int64_t row = item % row_blocks * kBlockRows;
    const int64_t column = panel * kPanelColumns;
    linear({
        .panels = w.panel(panel),
        .panel_bytes = w.panel_bytes(),
        .steps = w.steps(),
        .x = x + row * x_row_bytes,
        .x_row_bytes = x_row_bytes,
        .rows = std::min(kBlockRows, args.rows - row),
        .out = args.out + row * w.out() + column,
        .out_stride = w.out(),
        .columns = std::min(block_panels * kPanelColumns, w.out() - column),
        .add = args.add,
        .widened =
            widened_floats > 0 ? widened + worker * widened_floats : nullptr,
    });
  });
  return absl::OkStatus();
}

}  // namespace kf::cpu
