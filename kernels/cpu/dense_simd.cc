// Linear products, normalisation and activation; compiled once per SIMD level.
#include "kernels/cpu/dense_kernels.h"
#include "kernels/cpu/linear_tiles.h"
#include "kernels/cpu/pack_pairs.h"
#include "kernels/cpu/vec.h"

namespace kf::cpu::KF_SIMD_NS {
namespace {

struct F32 {
  template <int kRows, int kVecs>
  static inline void Step(const float* const (&x)[kRows],
                          int64_t step,
                          const void* const (&w)[kVecs],
                          VF (&acc)[kRows][kVecs]) {
    VF weight[kVecs];
    for (int v = 0; v < kVecs; ++v) {
      weight[v] = Load(static_cast<const float*>(w[v]));
    }
    for (int r = 0; r < kRows; ++r) {
      const VF a = Set(x[r][step]);
      for (int v = 0; v < kVecs; ++v) {
        acc[r][v] = Fma(a, weight[v], acc[r][v]);
      }
    }
  }
  using X = float;
};

// Pairs against pairs: two products a lane and instruction.
struct Bf16Pairs {
  template <int kRows, int kVecs>
  static inline void Step(const uint32_t* const (&x)[kRows],
                          int64_t step,
                          const void* const (&w)[kVecs],
                          VF (&acc)[kRows][kVecs]) {
    VU weight[kVecs];
    for (int v = 0; v < kVecs; ++v) weight[v] = LoadBits(w[v]);
    for (int r = 0; r < kRows; ++r) {
      const VU a = SetBits(x[r][step]);
      for (int v = 0; v < kVecs; ++v) {
        acc[r][v] = DotBf16(acc[r][v], a, weight[v]);
      }
    }
  }
  using X = uint32_t;
};

// The same products with weights widened to f32, K in order: the sums of F32 on
// widened weights.
struct Bf16Widened {
  template <int kRows, int kVecs>
  static inline void Step(const float* const (&x)[kRows],
                          int64_t step,
                          const void* const (&w)[kVecs],
                          VF (&acc)[kRows][kVecs]) {
    VU weight[kVecs];
    for (int v = 0; v < kVecs; ++v) weight[v] = LoadBits(w[v]);
    for (int r = 0; r < kRows; ++r) {
      const VF even = Set(x[r][2 * step]);
      for (int v = 0; v < kVecs; ++v) {
        acc[r][v] = Fma(even, EvenBf16(weight[v]), acc[r][v]);
      }
    }
    for (int r = 0; r < kRows; ++r) {
      const VF odd = Set(x[r][2 * step + 1]);
      for (int v = 0; v < kVecs; ++v) {
        acc[r][v] = Fma(odd, OddBf16(weight[v]), acc[r][v]);
      }
    }
  }
  using X = float;
};

// Steps of one line of 64 bytes a panel.
template <typename Steps>
struct LineTiles {
  template <int kRows, int kPanels>
  static void Tile(const LinearBlock& b,
                   int64_t row,
                   int64_t panel,
                   const FetchAhead& ahead) {
    using X = typename Steps::X;
    constexpr int kVecs = kPanels * kPanelVecs;
    const X* x[kRows];
    for (int r = 0; r < kRows; ++r) {
      x[r] = reinterpret_cast<const X*>(static_cast<const char*>(b.x) +
                                        (row + r) * b.x_row_bytes);
    }
    const char* line[kPanels];
    for (int p = 0; p < kPanels; ++p) {
      line[p] =
          static_cast<const char*>(b.panels) + (panel + p) * b.panel_bytes;
    }
    VF acc[kRows][kVecs] = {};
    for (int64_t step = 0; step < b.steps; ++step) {
      const int64_t offset = step * kLineBytes;
      const void* w[kVecs];
      for (int v = 0; v < kVecs; ++v) {
        w[v] = line[v / kPanelVecs] + offset + v % kPanelVecs * kVecBytes;
      }
      const int64_t fetched = offset + ahead.At(step);
      for (int p = 0; p < kPanels; ++p) __builtin_prefetch(line[p] + fetched);
      Steps::template Step<kRows, kVecs>(x, step, w, acc);
    }
    StoreTile(b, row, panel, acc);
  }
};

void LinearF32(const LinearBlock& block) { Linear<LineTiles<F32>>(block); }

// bf16 panels as f32 panels: 16 pairs of a line become two lines.
void WidenPanels(const LinearBlock& b,
                 int64_t panel,
                 int64_t panels,
                 float* to) {
  const char* from = static_cast<const char*>(b.panels) + panel * b.panel_bytes;
  for (int64_t line = 0; line < panels * b.steps; ++line) {
    for (int v = 0; v < kPanelVecs; ++v) {
      const VU pairs = LoadBits(from + line * kLineBytes + v * kVecBytes);
      float* even = to + line * 2 * kPanelColumns + v * kLanes;
      Store(EvenBf16(pairs), even);
      Store(OddBf16(pairs), even + kPanelColumns);
    }
  }
}

// Widens the weights of a stripe once for all its rows.
[[maybe_unused]] void LinearWidened(const LinearBlock& b) {
  constexpr int64_t kStripe = PanelsFor(kMaxRows);
  const int64_t panels = (b.columns + kPanelColumns - 1) / kPanelColumns;
  for (int64_t panel = 0; panel < panels; panel += kStripe) {
    const int64_t count = panels - panel < kStripe ? panels - panel : kStripe;
    const int64_t column = panel * kPanelColumns;
    WidenPanels(b, panel, count, b.widened);
    LinearBlock wide = b;
    wide.panels = b.widened;
    wide.panel_bytes = 2 * b.panel_bytes;
    wide.steps = 2 * b.steps;
    wide.out = b.out + column;
    const int64_t left = b.columns - column;
    const int64_t whole = count * kPanelColumns;
    wide.columns = left < whole ? left : whole;
    Linear<LineTiles<F32>>(wide);
  }
}

// Bf16Pairs with the instruction, else Bf16Widened.
template <bool kPairs>
void LinearBf16(const LinearBlock& block) {
  if constexpr (kPairs) {
    Linear<LineTiles<Bf16Pairs>>(block);
  } else if (block.widened != nullptr) {
    LinearWidened(block);
  } else {
    Linear<LineTiles<Bf16Widened>>(block);
  }
}

int64_t WidenedFloats(int64_t k) {
  return kHasDotBf16 ? 0
                     : PanelsFor(kMaxRows) * kPanelColumns * ((k + 1) / 2 * 2);
}

int64_t Bf16RowBytes(int64_t k) {
  return (k + 1) / 2 * 2 * (kHasDotBf16 ? 2 : 4);
}

void PackRow(const float* x, int64_t k, void* out) {
  if constexpr (kHasDotBf16) {
    PackPairs(x, k, static_cast<uint16_t*>(out));
  } else {
    int64_t i = 0;
    auto* to = static_cast<float*>(out);
    for (; i + kLanes <= k; i += kLanes) {
      StoreBits(RoundToBf16Bits(Load(x + i)), to + i);
    }
    for (; i < k; ++i) {
      const uint32_t bits = RoundToBf16Bits(x[i]);
      __builtin_memcpy(to + i, &bits, sizeof(bits));
    }
    if (k % 2 != 0) to[k] = 0.0F;
  }
}

double SumOfSquares(const float* x, int64_t width) {
  // Four partial sums hide the latency of the addition; their order is fixed
  // by the width alone.
  VF sum[4] = {};
  int64_t i = 0;
  for (; i + 4 * kLanes <= width; i += 4 * kLanes) {
    for (int s = 0; s < 4; ++s) {
      const VF v = Load(x + i + s * kLanes);
      sum[s] = Fma(v, v, sum[s]);
    }
  }
  double total =
      static_cast<double>(ReduceAdd((sum[0] + sum[1]) + (sum[2] + sum[3])));
  for (; i < width; ++i) {
    total += static_cast<double>(x[i]) * static_cast<double>(x[i]);
  }
  if (total < __builtin_inf()) return total;
  // Above 1.8e19 squares overflow a float, but no double.
  total = 0.0;
  for (i = 0; i < width; ++i) {
    total += static_cast<double>(x[i]) * static_cast<double>(x[i]);
  }
  return total;
}

void RmsNorm(
    const float* x, const float* weight, float eps, int64_t width, float* out) {
  const double total = SumOfSquares(x, width);
  const double mean = total / static_cast<double>(width);
  // Infinity must not scale the rest of its row to zero: that would hide it.
  const float scale =
      total < __builtin_inf()
          ? static_cast<float>(1.0 /
                               __builtin_sqrt(mean + static_cast<double>(eps)))
          : __builtin_nanf("");
  int64_t j = 0;
  for (; j + kLanes <= width; j += kLanes) {
    Store(Load(x + j) * Set(scale) * Load(weight + j), out + j);
  }
  for (; j < width; ++j) out[j] = x[j] * scale * weight[j];
}

void SwiGlu(const float* gate, const float* up, int64_t width, float* out) {
  int64_t i = 0;
  for (; i + kLanes <= width; i += kLanes) {
    Store(SwiGluOf(Load(gate + i), Load(up + i)), out + i);
  }
  if (i == width) return;
  // The tail takes the same path, so that an element's bits do not depend on
  // its place.
  const auto tail = static_cast<unsigned long>(width - i) * sizeof(float);
  VF g = Zero();
  VF u = Zero();
  __builtin_memcpy(&g, gate + i, tail);
  __builtin_memcpy(&u, up + i, tail);
  const VF y = SwiGluOf(g, u);
  __builtin_memcpy(out + i, &y, tail);
}

}  // namespace

extern const DenseKernels kDenseKernels;
const DenseKernels kDenseKernels = {
    .linear_f32 = LinearF32,
    .linear_bf16 = LinearBf16<kHasDotBf16>,
    .pack_row = PackRow,
    .bf16_row_bytes = Bf16RowBytes,
    .widened_floats = WidenedFloats,
    .rms_norm = RmsNorm,
    .swiglu = SwiGlu,
};

}  // namespace kf::cpu::KF_SIMD_NS
