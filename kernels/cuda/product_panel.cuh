// What the products on tensor cores share: panels of x and W in shared memory,
// the fragments that are read from them, and how y is written. Device code.
#pragma once

#include <cstdint>

#include "kernels/cuda/gpu.h"
#include "kernels/cuda/store_pair.cuh"

namespace kf::cuda {

// A k-step's rows of x and W in shared memory. A row takes one 16-byte chunk
// more than it holds: an odd number of chunks, so that the eight rows that
// ldmatrix reads at once lie in different banks.
template <int kRows, int kDepth>
struct Panel {
  static constexpr int kStride = kDepth + 8;
  gpu::bf16 at[kRows][kStride];
};

// Copies rows [first, first + kRows) of m, k in [k0, k0 + kDepth); what lies
// beyond `rows` or `in` is 0.
template <int kThreads, int kRows, int kDepth>
__device__ __forceinline__ void LoadPanel(Panel<kRows, kDepth>& panel,
                                          const gpu::bf16* m,
                                          int64_t first,
                                          int64_t rows,
                                          int64_t k0,
                                          int64_t in) {
  constexpr int kChunks = kDepth / 8;
  for (int i = static_cast<int>(threadIdx.x); i < kRows * kChunks;
       i += kThreads) {
    const int row = i / kChunks;
    const int k = i % kChunks * 8;
    const bool ok = first + row < rows && k0 + k < in;
    const gpu::bf16* from = ok ? m + (first + row) * in + k0 + k : m;
    gpu::cp_async16(&panel.at[row][k], from, ok);
  }
}

// y of two neighbouring columns, the first of them even. Args: the fields of
// ProductArgs, `stride` set.
template <typename Args>
__device__ __forceinline__ void Emit(
    const Args& args, int64_t row, int64_t column, float a, float b) {
  if (row >= args.rows || column >= args.out) return;
  const int64_t at = row * args.stride + column;
  const bool both = column + 1 < args.out;
  if (args.residual != nullptr) {
    a += args.residual[at];
    if (both) b += args.residual[at + 1];
  }
  // A run of columns of a larger y may begin at an odd one.
  if (both && reinterpret_cast<uintptr_t>(args.y + at) % 8 == 0) {
    StorePair(args.y + at, a, b);
    return;
  }
  args.y[at] = a;
  if (both) args.y[at + 1] = b;
}

// Fragments of 16 rows of x and of 16 columns of y (two tiles of 8), k in
// [k, k + 16) of their panels.
template <int kRows, int kDepth>
__device__ __forceinline__ void RowFragment(uint32_t (&fragment)[4],
                                            const Panel<kRows, kDepth>& panel,
                                            int row,
                                            int k) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  gpu::ldmatrix_x4(fragment, &panel.at[row + lane % 16][k + lane / 16 * 8]);
}
template <int kRows, int kDepth>
__device__ __forceinline__ void ColumnFragment(
    uint32_t (&fragment)[4],
    const Panel<kRows, kDepth>& panel,
    int column,
    int k) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  gpu::ldmatrix_x4(
      fragment,
      &panel.at[column + lane / 16 * 8 + lane % 8][k + lane / 8 % 2 * 8]);
}

}  // namespace kf::cuda
