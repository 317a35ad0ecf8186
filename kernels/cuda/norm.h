// RMS norm and layer norm of the CUDA backend, with the residual add that
// comes before them.
//
// Sums are taken in double, in an order that the width alone fixes, so that a
// row's bits depend on the row. Bound by memory: a row is read once or twice
// (the second time from cache) and written once.
#pragma once

#include <cstdint>

#include "kernels/cuda/stream.h"

namespace kf::cuda {

// All pointers are device memory; f32, row-major.
struct NormArgs {
  const float* x = nullptr;       // [rows, width]
  const float* add = nullptr;     // [rows, width], or null: the residual
  float* sum = nullptr;           // [rows, width], x + add; may be x. With add
  const float* weight = nullptr;  // [width]
  const float* bias = nullptr;    // [width], or null; layer norm alone
  float eps = 0.0F;               // >= 0
  int64_t rows = 0;
  int64_t width = 0;     // >= 1
  float* out = nullptr;  // [rows, width]; may be x, but not sum
};

// out = y / sqrt(mean(y^2) + eps) * weight, y = x + add. A row that holds NaN
// or infinity comes out as NaN.
void RmsNorm(gpu::Stream stream, const NormArgs& args);

// out = (y - mean(y)) / sqrt(var(y) + eps) * weight + bias, y = x + add; the
// variance is that of the population. NaN and infinity as above.
void LayerNorm(gpu::Stream stream, const NormArgs& args);

}  // namespace kf::cuda
