#include "kernels/core/status.h"
#include "kernels/cuda/gpu.h"
#include "kernels/cuda/product.h"

namespace kf::cuda {
namespace {

// A block computes kRows x 64 of y; thread (r, c) of 16 x 16 owns rows r, r +
// 16, .. and columns c, c + 16, ..
constexpr int kThreads = 256;
constexpr int kSide = 16;
constexpr int kColumns = 64;
constexpr int kDepth = 16;

template <int kRows>
__global__ void __launch_bounds__(kThreads)
    ProductKernel(ProductArgs<float> args) {
  // Transposed, and one float wider than needed, for the sake of the banks.
  KF_GPU_SHARED(float[kDepth][kRows + 1], x);
  KF_GPU_SHARED(float[kDepth][kColumns + 1], w);
  constexpr int kOwnRows = kRows / kSide;
  constexpr int kOwnColumns = kColumns / kSide;
  const int t = static_cast<int>(threadIdx.x);
  const int64_t first_row = int64_t{blockIdx.x} * kRows;
  const int64_t first_column = int64_t{blockIdx.y} * kColumns;
  const auto load = [&](auto& to, const float* m, int64_t first, int64_t rows,
                        int count, int64_t k0) {
    for (int i = t; i < count * kDepth; i += kThreads) {
      const int row = i / kDepth;
      const int k = i % kDepth;
      const bool ok = first + row < rows && k0 + k < args.in;
      to[k][row] = ok ? m[(first + row) * args.in + k0 + k] : 0.0F;
    }
  };
  float sum[kOwnRows][kOwnColumns] = {};
  for (int64_t k0 = 0; k0 < args.in; k0 += kDepth) {
    load(x, args.x, first_row, args.rows, kRows, k0);
    load(w, args.w, first_column, args.out, kColumns, k0);
    __syncthreads();
    for (int k = 0; k < kDepth; ++k) {
#pragma unroll
      for (int i = 0; i < kOwnRows; ++i) {
#pragma unroll
        for (int j = 0; j < kOwnColumns; ++j) {
          sum[i][j] = fmaf(x[k][t / kSide + kSide * i],
                           w[k][t % kSide + kSide * j], sum[i][j]);
        }
      }
    }
    __syncthreads();  // the next step overwrites x and w
  }
#pragma unroll
  for (int i = 0; i < kOwnRows; ++i) {
#pragma unroll
    for (int j = 0; j < kOwnColumns; ++j) {
      const int64_t row = first_row + t / kSide + kSide * i;
      const int64_t column = first_column + t % kSide + kSide * j;
      if (row >= args.rows || column >= args.out) continue;
      const int64_t at = row * args.out + column;
      args.y[at] =
          args.residual == nullptr ? sum[i][j] : args.residual[at] + sum[i][j];
    }
  }
}

template <int kRows>
void LaunchRows(gpu::Stream stream, const ProductArgs<float>& args) {
  const auto blocks = [](int64_t count, int64_t each) {
    return static_cast<unsigned>((count + each - 1) / each);
  };
  gpu::launch(stream,
              dim3(blocks(args.rows, kRows), blocks(args.out, kColumns)),
              kThreads, 0, ProductKernel<kRows>, args);
}

}  // namespace

void Product(gpu::Stream stream, const ProductArgs<float>& args) {
  if (args.rows == 0) return;
  KF_CHECK(args.in >= 1 && args.out >= 1);
  if (args.rows <= kSide) return LaunchRows<kSide>(stream, args);
  LaunchRows<64>(stream, args);
}

}  // namespace kf::cuda
