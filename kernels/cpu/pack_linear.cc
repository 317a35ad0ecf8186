// Weights of a model file as panels.
#include <algorithm>
#include <cstddef>
#include <cstring>
#include <vector>

#include "kernels/core/bf16.h"
#include "kernels/core/dtype.h"
#include "kernels/core/half.h"
#include "kernels/core/status.h"
#include "kernels/core/weight_groups.h"
#include "kernels/cpu/linear.h"

namespace kf::cpu {
namespace {

static_assert(kGroup == kGroupWeights);

// Columns of W read at a time: a multiple of every type's block.
constexpr int64_t kChunk = 1024;

// Row `index` of the stacked matrices.
struct SourceRow {
  DType type;
  const std::byte* data;

  // From column `first` on, a multiple of the type's block.
  const std::byte* At(int64_t first) const {
    const BlockLayout layout = LayoutOf(type);
    return data + first / layout.elements * layout.bytes;
  }
};
SourceRow RowOf(std::span<const WeightView> stacked, int64_t index) {
  for (const WeightView& view : stacked) {
    if (index < view.rows) {
      const BlockLayout layout = LayoutOf(view.type);
      return {view.type,
              view.data + index * (view.cols / layout.elements * layout.bytes)};
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

// What of a panel's rows there is: `rows` of 16.
struct PanelSource {
  SourceRow row[kPanelColumns];
  int64_t rows;
};

PanelSource SourceOf(std::span<const WeightView> stacked,
                     int64_t out,
                     int64_t panel) {
  PanelSource source = {};
  const int64_t first = panel * kPanelColumns;
  source.rows = std::min(kPanelColumns, out - first);
  for (int64_t c = 0; c < source.rows; ++c) {
    source.row[c] = RowOf(stacked, first + c);
  }
  return source;
}

void PackFloats(const PanelSource& source,
                WeightFormat format,
                int64_t in,
                float* values,
                std::byte* panel) {
  for (int64_t first = 0; first < in; first += kChunk) {
    const int64_t count = std::min(kChunk, in - first);
    for (int64_t c = 0; c < kPanelColumns; ++c) {
      float* to = values + c * kChunk;
      if (c >= source.rows) {
        std::fill_n(to, count, 0.0F);
        continue;
      }
      Dequantize(source.row[c].type, source.row[c].At(first), count, to);
    }
    if (format == WeightFormat::kF32) {
      StoreF32(values, first, count, reinterpret_cast<float*>(panel));
    } else {
      StoreBf16(values, first, count, reinterpret_cast<Bf16*>(panel));
    }
  }
}

// Column c's groups [first, ...) of a chunk into its place in the lines.
void StoreGroups(const WeightGroup* groups,
                 int64_t count,
                 bool four_bits,
                 int64_t column,
                 std::byte* step) {
  const int64_t bytes = four_bits ? kGroupBytes4 : kGroupBytes8;
  for (int64_t g = 0; g < count; ++g, step += bytes) {
    const WeightGroup& group = groups[g];
    const int lines = four_bits ? 4 : 8;
    for (int line = 0; line < lines; ++line) {
      std::byte* to = step + line * kLineBytes + column * 4;
      for (int b = 0; b < 4; ++b) {
        const uint32_t low = group.quants[4 * line + b];
        const uint32_t high =
            four_bits ? uint32_t{group.quants[16 + 4 * line + b]} << 4 : 0;
        to[b] = static_cast<std::byte>(low | high);
      }
    }
    const uint16_t scale = FloatToHalf(group.scale);
    const uint16_t minimum = FloatToHalf(group.minimum);
    std::byte* scales = step + bytes - kLineBytes + column * 2;
    std::memcpy(scales, &scale, sizeof(scale));
    std::memcpy(scales + kLineBytes / 2, &minimum, sizeof(minimum));
  }
}

void PackGroups(const PanelSource& source,
                WeightFormat format,
                int64_t in,
                std::byte* panel) {
  const bool four_bits = format == WeightFormat::kQ4;
  const int64_t step_bytes = four_bits ? kGroupBytes4 : kGroupBytes8;
  constexpr WeightGroup kNone = {};
  WeightGroup groups[kChunk / kGroup];
  for (int64_t first = 0; first < in; first += kChunk) {
    const int64_t columns = std::min(kChunk, in - first);
    const int64_t count = (columns + kGroup - 1) / kGroup;
    std::byte* step = panel + first / kGroup * step_bytes;
    for (int64_t c = 0; c < kPanelColumns; ++c) {
      if (c < source.rows) {
        ReadWeightGroups(source.row[c].type, source.row[c].At(first), columns,
                         four_bits ? 4 : 8, groups);
      } else {
        std::fill_n(groups, count, kNone);
      }
      StoreGroups(groups, count, four_bits, c, step);
    }
  }
}

// kQ4 where all rows of the panel have groups of 4 bits, else kQ8; other
// formats are as asked for.
WeightFormat FormatOf(const PanelSource& source, WeightFormat asked) {
  if (asked != WeightFormat::kQ4) return asked;
  for (int64_t c = 0; c < source.rows; ++c) {
    if (!HasGroupsOf4Bits(source.row[c].type)) return WeightFormat::kQ8;
  }
  return WeightFormat::kQ4;
}

int64_t StepBytes(WeightFormat format) {
  if (format == WeightFormat::kQ4) return kGroupBytes4;
  return format == WeightFormat::kQ8 ? kGroupBytes8 : kLineBytes;
}

}  // namespace

int64_t PackedLinear::steps() const {
  switch (format_) {
    case WeightFormat::kF32:
      return in_;
    case WeightFormat::kBF16:
      return (in_ + 1) / 2;
    case WeightFormat::kQ8:
    case WeightFormat::kQ4:
      break;
  }
  return (in_ + kGroup - 1) / kGroup;
}

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
  const int64_t panels = (out + kPanelColumns - 1) / kPanelColumns;
  int64_t bytes = 0;
  for (int64_t p = 0; p < panels; ++p) {
    const WeightFormat layout = FormatOf(SourceOf(stacked, out, p), format);
    if (packed->runs_.empty() || packed->runs_.back().format != layout) {
      packed->runs_.push_back(
          {.format = layout,
           .first = p,
           .panel_bytes = packed->steps() * StepBytes(layout)});
    }
    ++packed->runs_.back().count;
    bytes += packed->runs_.back().panel_bytes;
  }
  KF_ASSIGN_OR_RETURN(
      packed->memory_,
      AlignedBytes::Allocate(static_cast<size_t>(bytes), "linear weights"));
  std::byte* data = packed->memory_.data();
  std::vector<float> chunks(
      static_cast<size_t>(pool.threads() * kPanelColumns * kChunk));
  for (PanelRun& run : packed->runs_) {
    run.data = data;
    data += run.count * run.panel_bytes;
    pool.ParallelFor(run.count, [&](int64_t index, int worker) {
      const int64_t p = run.first + index;
      const PanelSource source = SourceOf(stacked, out, p);
      if (run.format == WeightFormat::kQ8 || run.format == WeightFormat::kQ4) {
        PackGroups(source, run.format, in, run.panel(p));
      } else {
        PackFloats(source, run.format, in,
                   chunks.data() + worker * kPanelColumns * kChunk,
                   run.panel(p));
      }
    });
  }
  return packed;
}

}  // namespace kf::cpu
