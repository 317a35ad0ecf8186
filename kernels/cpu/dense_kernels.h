// The per-level kernels of everything but attention: what dense_simd.cc gives
// for each SIMD level. Flat structs of pointers and counts; the callers check
// shapes and cut the work.
#pragma once

#include <stdint.h>

namespace kf::cpu {

// Packed weights are panels of this many rows of W (columns of the product):
//   f32:  [ceil(N / 16)][K][16] floats
//   bf16: [ceil(N / 16)][ceil(K / 2)][16][2] bfloat16
// padded with zeros. A panel's line of 64 bytes is one AVX-512 vector; kernels
// read 4 or 8 panels side by side, which also keeps as many memory streams in
// flight.
inline constexpr int64_t kPanelColumns = 16;
inline constexpr int64_t kLineBytes = 64;  // a step over K, of either format

// A block of out = x W^T, or inout += x W^T.
struct LinearBlock {
  const void* panels;   // the block's first panel
  int64_t panel_bytes;  // from a panel to the next
  int64_t steps;        // K (f32) or ceil(K / 2) (bf16)
  const void* x;        // first row; as pack_rows left it, or floats (f32)
  int64_t x_row_bytes;  // from a row to the next
  int64_t rows;         // > 0
  float* out;           // element (first row, first column)
  int64_t out_stride;   // floats from a row to the next
  int64_t columns;      // > 0; a multiple of 16, or up to the end of W
  bool add;             // out += product, added once at the end
  // Scratch of linear_bf16 for blocks of many rows, or null: the same bits, but
  // weights are widened to f32 once a block instead of once a register tile.
  float* widened;
};

struct DenseKernels {
  // Each element of the product is one accumulator that takes K in order, so
  // its bits do not depend on how the work is cut.
  void (*linear_f32)(const LinearBlock& block);
  void (*linear_bf16)(const LinearBlock& block);
  // A row of K floats rounded to bf16, in the form linear_bf16 reads: pairs of
  // bf16, or floats where there is no instruction for pairs; padded with zero
  // to an even count. bf16_row_bytes(K) bytes.
  void (*pack_row)(const float* x, int64_t k, void* out);
  int64_t (*bf16_row_bytes)(int64_t k);
  // Floats that LinearBlock::widened needs; 0: the level does not use it.
  int64_t (*widened_floats)(int64_t k);

  // One row of Backend::RmsNorm and Backend::SwiGlu.
  void (*rms_norm)(const float* x,
                   const float* weight,
                   float eps,
                   int64_t width,
                   float* out);
  void (*swiglu)(const float* gate, const float* up, int64_t width, float* out);
};

namespace scalar {
extern const DenseKernels kDenseKernels;
}
namespace avx2 {
extern const DenseKernels kDenseKernels;
}
namespace avx512 {
extern const DenseKernels kDenseKernels;
}
namespace avx512_bf16 {
extern const DenseKernels kDenseKernels;
}

}  // namespace kf::cpu
