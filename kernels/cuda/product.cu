#include "kernels/core/status.h"
#include "kernels/cuda/gpu.h"
#include "kernels/cuda/product.h"
#include "kernels/cuda/product_panel.cuh"

namespace kf::cuda {
namespace {

// --- many rows: a block computes kRows x 128 of y, a warp kRows/2 x 32 ---
constexpr int kTileThreads = 256;
constexpr int kTileColumns = 128;
constexpr int kTileDepth = 32;
constexpr int kTileStages = 4;

template <int kRows>
struct TileStage {
  Panel<kRows, kTileDepth> x;
  Panel<kTileColumns, kTileDepth> w;
};

// Warp (i, j) of 2 x 4 owns rows i kRows/2 .. and columns 32 j ...
template <int kRows>
__global__ void __launch_bounds__(kTileThreads, 2)
    TileProductKernel(ProductArgs<gpu::bf16> args) {
  constexpr int kWarpRows = kRows / 2;
  constexpr int kRowTiles = kWarpRows / 16;
  constexpr int kColumnTiles = 4;  // of 8
  auto* stages = gpu::dyn_smem<TileStage<kRows>>();
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int row0 = warp / 4 * kWarpRows;
  const int column0 = warp % 4 * 8 * kColumnTiles;
  const int64_t first_row = int64_t{blockIdx.x} * kRows;
  const int64_t first_column = int64_t{blockIdx.y} * kTileColumns;
  const int64_t steps = (args.in + kTileDepth - 1) / kTileDepth;

  const auto load = [&](int64_t step) {
    if (step < steps) {
      TileStage<kRows>& stage = stages[step % kTileStages];
      LoadPanel<kTileThreads>(stage.x, args.x, first_row, args.rows,
                              step * kTileDepth, args.in);
      LoadPanel<kTileThreads>(stage.w, args.w, first_column, args.out,
                              step * kTileDepth, args.in);
    }
    gpu::cp_async_commit();  // empty at the end: the count stays in step
  };
  for (int s = 0; s < kTileStages - 1; ++s) load(s);

  float sum[kRowTiles][kColumnTiles][4] = {};
  for (int64_t step = 0; step < steps; ++step) {
    gpu::cp_async_wait<kTileStages - 2>();
    // All see this step's panels, and have done with those of the step before,
    // which the next load overwrites.
    __syncthreads();
    load(step + kTileStages - 1);
    const TileStage<kRows>& stage = stages[step % kTileStages];
#pragma unroll
    for (int k = 0; k < kTileDepth; k += 16) {
      if (step * kTileDepth + k >= args.in) continue;
      uint32_t w[kColumnTiles / 2][4];
#pragma unroll
      for (int j = 0; j < kColumnTiles / 2; ++j) {
        ColumnFragment(w[j], stage.w, column0 + 16 * j, k);
      }
#pragma unroll
      for (int i = 0; i < kRowTiles; ++i) {
        uint32_t x[4];
        RowFragment(x, stage.x, row0 + 16 * i, k);
#pragma unroll
        for (int j = 0; j < kColumnTiles / 2; ++j) {
          gpu::mma_16816(sum[i][2 * j], x, w[j][0], w[j][1]);
          gpu::mma_16816(sum[i][2 * j + 1], x, w[j][2], w[j][3]);
        }
      }
    }
  }
  gpu::cp_async_wait<0>();
#pragma unroll
  for (int i = 0; i < kRowTiles; ++i) {
#pragma unroll
    for (int j = 0; j < kColumnTiles; ++j) {
      const int64_t row = first_row + row0 + 16 * i + lane / 4;
      const int64_t column = first_column + column0 + 8 * j + lane % 4 * 2;
      Emit(args, row, column, sum[i][j][0], sum[i][j][1]);
      Emit(args, row + 8, column, sum[i][j][2], sum[i][j][3]);
    }
  }
}

// --- few rows: W is read once, at the speed of memory, so all that counts is
// how many of its bytes are under way; a warp owns 8 columns ---
constexpr int kStreamThreads = 128;
constexpr int kStreamColumns = 32;
constexpr int kStreamDepth = 64;

// As many as leave room for two blocks on an SM of an A100.
template <int kRows>
constexpr int kStreamStages = kRows <= 32 ? 8 : 5;

template <int kRows>
struct StreamStage {
  Panel<kRows, kStreamDepth> x;
  Panel<kStreamColumns, kStreamDepth> w;
};

template <int kRows>
__global__ void __launch_bounds__(kStreamThreads)
    StreamProductKernel(ProductArgs<gpu::bf16> args) {
  constexpr int kRowTiles = kRows / 16;
  constexpr int kStages = kStreamStages<kRows>;
  auto* stages = gpu::dyn_smem<StreamStage<kRows>>();
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int64_t first_column = int64_t{blockIdx.x} * kStreamColumns;
  const int64_t steps = (args.in + kStreamDepth - 1) / kStreamDepth;

  const auto load = [&](int64_t step) {
    if (step < steps) {
      StreamStage<kRows>& stage = stages[step % kStages];
      LoadPanel<kStreamThreads>(stage.w, args.w, first_column, args.out,
                                step * kStreamDepth, args.in);
      LoadPanel<kStreamThreads>(stage.x, args.x, 0, args.rows,
                                step * kStreamDepth, args.in);
    }
    gpu::cp_async_commit();
  };
  for (int s = 0; s < kStages - 1; ++s) load(s);

  float sum[kRowTiles][4] = {};
  for (int64_t step = 0; step < steps; ++step) {
    gpu::cp_async_wait<kStages - 2>();
    __syncthreads();  // as in the kernel above
    load(step + kStages - 1);
    const StreamStage<kRows>& stage = stages[step % kStages];
#pragma unroll
    for (int k = 0; k < kStreamDepth; k += 32) {
      // Four matrices of 8 columns by 8 k: two steps of 16.
      uint32_t w[4];
      gpu::ldmatrix_x4(w, &stage.w.at[warp * 8 + lane % 8][k + lane / 8 * 8]);
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int at = k + 16 * half;
        if (step * kStreamDepth + at >= args.in) continue;
#pragma unroll
        for (int i = 0; i < kRowTiles; ++i) {
          uint32_t x[4];
          RowFragment(x, stage.x, 16 * i, at);
          gpu::mma_16816(sum[i], x, w[2 * half], w[2 * half + 1]);
        }
      }
    }
  }
  gpu::cp_async_wait<0>();
#pragma unroll
  for (int i = 0; i < kRowTiles; ++i) {
    const int64_t row = 16 * i + lane / 4;
    const int64_t column = first_column + warp * 8 + lane % 4 * 2;
    Emit(args, row, column, sum[i][0], sum[i][1]);
    Emit(args, row + 8, column, sum[i][2], sum[i][3]);
  }
}

constexpr unsigned Blocks(int64_t count, int64_t each) {
  return static_cast<unsigned>((count + each - 1) / each);
}

template <int kRows>
void LaunchTile(gpu::Stream stream, const ProductArgs<gpu::bf16>& args) {
  gpu::launch(stream,
              dim3(Blocks(args.rows, kRows), Blocks(args.out, kTileColumns)),
              kTileThreads, kTileStages * sizeof(TileStage<kRows>),
              TileProductKernel<kRows>, args);
}

template <int kRows>
void LaunchStream(gpu::Stream stream, const ProductArgs<gpu::bf16>& args) {
  gpu::launch(stream, Blocks(args.out, kStreamColumns), kStreamThreads,
              kStreamStages<kRows> * sizeof(StreamStage<kRows>),
              StreamProductKernel<kRows>, args);
}

__global__ void RoundToBf16Kernel(const float* x,
                                  int64_t count,
                                  gpu::bf16* rounded) {
  const int64_t i = (int64_t{blockIdx.x} * blockDim.x + threadIdx.x) * 4;
  if (i + 4 <= count) {
    const float4 v = *reinterpret_cast<const float4*>(x + i);
    *reinterpret_cast<uint2*>(rounded + i) =
        make_uint2(gpu::pack_bf16(v.x, v.y), gpu::pack_bf16(v.z, v.w));
    return;
  }
  for (int64_t j = i; j < count; ++j)
    rounded[j] = gpu::from_float<gpu::bf16>(x[j]);
}

}  // namespace

void Product(gpu::Stream stream, const ProductArgs<Bf16>& args) {
  if (args.rows == 0) return;
  KF_CHECK(args.in % 8 == 0);
  const ProductArgs<gpu::bf16> device = {
      reinterpret_cast<const gpu::bf16*>(args.x),
      reinterpret_cast<const gpu::bf16*>(args.w),
      args.residual,
      args.y,
      args.rows,
      args.in,
      args.out,
      args.stride == 0 ? args.out : args.stride};
  if (args.rows <= 16) return LaunchStream<16>(stream, device);
  if (args.rows <= 32) return LaunchStream<32>(stream, device);
  if (args.rows <= 64) return LaunchStream<64>(stream, device);
  // Smaller tiles make the blocks that a large one would leave too few of.
  if (args.rows <= 256) return LaunchTile<64>(stream, device);
  LaunchTile<128>(stream, device);
}

void RoundToBf16(gpu::Stream stream,
                 const float* x,
                 int64_t count,
                 Bf16* rounded) {
  if (count == 0) return;
  constexpr int kThreads = 256;
  gpu::launch(stream, Blocks(count, 4 * kThreads), kThreads, 0,
              RoundToBf16Kernel, x, count,
              reinterpret_cast<gpu::bf16*>(rounded));
}

}  // namespace kf::cuda
