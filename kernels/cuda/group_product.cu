#include <algorithm>
#include <cstddef>

#include "kernels/core/status.h"
#include "kernels/cuda/gpu.h"
#include "kernels/cuda/group_product.h"
#include "kernels/cuda/group_tile.h"
#include "kernels/cuda/group_unpack.cuh"
#include "kernels/cuda/product.h"
#include "kernels/cuda/product_panel.cuh"

namespace kf::cuda {
namespace {

// --- few rows: a block's warps have kTiles times 8 columns of y each ---
constexpr int kWarps = 4;
constexpr int kThreads = 32 * kWarps;
constexpr int kDepth = static_cast<int>(kGroupTileInputs);

struct StreamArgs {
  const gpu::bf16* x;
  const std::byte* tiles;
  const float* residual;
  float* y;
  int64_t rows, in, out, stride;
};

template <int kBits, int kRows, int kTiles>
struct GroupStage {
  Panel<kRows, kDepth> x;
  GroupTile<kBits> w[kWarps][kTiles];
};

// As many as leave room for two blocks on an SM of an A100; at most 8.
template <typename Stage>
constexpr int kGroupStages =
    static_cast<int>(std::min<size_t>(8, 80 * 1024 / sizeof(Stage)));

// What a thread copies of each step, in pieces of 16 bytes. A weight of 4 bits
// leaves some four instructions to unpack it, look after the copies and
// multiply, so that addresses are found once, and moved on.
template <int kBits, int kRows, int kTiles>
class StageLoader {
 public:
  // `first`: this warp's first tile. In place of those beyond the matrix the
  // last is read: what comes of them is not written.
  __device__ __forceinline__ StageLoader(const StreamArgs& args, int64_t first)
      : x_begin_(args.x), row_step_(kRowsAtATime * args.in) {
    const int row = static_cast<int>(threadIdx.x) / kChunks;
    const int k = static_cast<int>(threadIdx.x) % kChunks * 8;
    x_ = args.x + row * args.in + k;
    rows_left_ = static_cast<int>(args.rows) - row;
    k_left_ = static_cast<int>(args.in) - k;
    const int64_t along = GroupTilesAlongInputs(args.in);
    const int64_t last = GroupTilesAlongOutputs(args.out) - 1;
    const auto tile_at = [&](int64_t n) {
      const int64_t tile = first + n < last ? first + n : last;
      return args.tiles +
             tile * along * static_cast<int64_t>(sizeof(GroupTile<kBits>));
    };
#pragma unroll
    for (int n = 0; n < kTiles; ++n) quants_[n] = tile_at(n) + Lane() * 16;
    scales_ = tile_at(Lane() / 8) + offsetof(GroupTile<kBits>, scales) +
              Lane() % 8 * 16;
  }

  // The step after the last one; `stage` is free.
  __device__ __forceinline__ void Load(
      GroupStage<kBits, kRows, kTiles>& stage) {
    const int row = static_cast<int>(threadIdx.x) / kChunks;
    const int k = static_cast<int>(threadIdx.x) % kChunks * 8;
    GroupTile<kBits>* const w = stage.w[threadIdx.x / 32];
#pragma unroll
    for (int n = 0; n < kTiles; ++n) {
#pragma unroll
      for (int i = 0; i < kBits / 4; ++i) {
        gpu::cp_async16(&w[n].quants[i * 128 + Lane() * 4],
                        quants_[n] + i * 512, true);
      }
      quants_[n] += sizeof(GroupTile<kBits>);
    }
    if (Lane() < 8 * kTiles) {
      gpu::cp_async16(&w[Lane() / 8].scales[Lane() % 8 * 4], scales_, true);
    }
    scales_ += sizeof(GroupTile<kBits>);
#pragma unroll
    for (int i = 0; i < kRows / kRowsAtATime; ++i) {
      const bool ok = k_left_ > 0 && kRowsAtATime * i < rows_left_;
      gpu::cp_async16(&stage.x.at[row + kRowsAtATime * i][k],
                      ok ? x_ + i * row_step_ : x_begin_, ok);
    }
    x_ += kDepth;
    k_left_ -= kDepth;
  }

 private:
  static constexpr int kChunks = kDepth / 8;
  static constexpr int kRowsAtATime = kThreads / kChunks;
  __device__ static __forceinline__ int Lane() {
    return static_cast<int>(threadIdx.x) % 32;
  }

  const gpu::bf16* x_begin_;
  const gpu::bf16* x_;
  int64_t row_step_;
  int rows_left_;  // below this thread's first
  int k_left_;
  const std::byte* quants_[kTiles];
  const std::byte* scales_;
};

template <int kBits, int kRows, int kTiles>
__global__ void __launch_bounds__(kThreads)
    GroupProductKernel(StreamArgs args) {
  using Stage = GroupStage<kBits, kRows, kTiles>;
  constexpr int kRowTiles = kRows / 16;
  constexpr int kStages = kGroupStages<Stage>;
  static_assert(kStages >= 2);
  auto* stages = gpu::dyn_smem<Stage>();
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int64_t first = (int64_t{blockIdx.x} * kWarps + warp) * kTiles;
  const int in = static_cast<int>(args.in);
  StageLoader<kBits, kRows, kTiles> loader(args, first);
  int to_load = in;  // inputs of which nothing is under way
  int slot = 0;      // of the next step to load
  const auto load = [&] {
    if (to_load > 0) loader.Load(stages[slot]);
    to_load -= kDepth;
    slot = slot + 1 == kStages ? 0 : slot + 1;
    gpu::cp_async_commit();  // empty at the end: the count stays in step
  };
  for (int s = 0; s < kStages - 1; ++s) load();

  float sum[kRowTiles][kTiles][4] = {};
  int at_slot = 0;
  for (int left = in; left > 0; left -= kDepth) {
    gpu::cp_async_wait<kStages - 2>();
    // All see this step's x, and have done with that of the step before, which
    // the next load overwrites.
    __syncthreads();
    load();
    const Stage& stage = stages[at_slot];
    at_slot = at_slot + 1 == kStages ? 0 : at_slot + 1;
    LaneWeights<kBits> weights[kTiles];
#pragma unroll
    for (int n = 0; n < kTiles; ++n) weights[n].Load(stage.w[warp][n], lane);
#pragma unroll
    for (int j = 0; j < kGroupTileGroups; ++j) {
      if (32 * j >= left) continue;
      GroupFragment w[kTiles];
#pragma unroll
      for (int n = 0; n < kTiles; ++n) weights[n].Unpack(w[n], j);
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int at = 32 * j + 16 * half;
        if (at >= left) continue;
#pragma unroll
        for (int i = 0; i < kRowTiles; ++i) {
          uint32_t x[4];
          RowFragment(x, stage.x, 16 * i, at);
#pragma unroll
          for (int n = 0; n < kTiles; ++n) {
            gpu::mma_16816(sum[i][n], x, w[n][2 * half], w[n][2 * half + 1]);
          }
        }
      }
    }
  }
  gpu::cp_async_wait<0>();
#pragma unroll
  for (int i = 0; i < kRowTiles; ++i) {
#pragma unroll
    for (int n = 0; n < kTiles; ++n) {
      const int64_t row = 16 * i + lane / 4;
      const int64_t column = (first + n) * kGroupTileOutputs + lane % 4 * 2;
      Emit(args, row, column, sum[i][n][0], sum[i][n][1]);
      Emit(args, row + 8, column, sum[i][n][2], sum[i][n][3]);
    }
  }
}

template <int kBits, int kRows, int kTiles>
void LaunchTiles(gpu::Stream stream, const StreamArgs& args) {
  using Stage = GroupStage<kBits, kRows, kTiles>;
  constexpr int64_t kColumns = kWarps * kTiles * kGroupTileOutputs;
  gpu::launch(stream,
              static_cast<unsigned>((args.out + kColumns - 1) / kColumns),
              kThreads, kGroupStages<Stage> * sizeof(Stage),
              GroupProductKernel<kBits, kRows, kTiles>, args);
}

// Each block reads all of x, from L2. Where there are columns enough for all
// SMs all the same, it has four times as many.
constexpr int64_t kManyColumns = 16384;

template <int kBits, int kRows>
void LaunchRows(gpu::Stream stream, const StreamArgs& args) {
  if (args.out < kManyColumns) {
    return LaunchTiles<kBits, kRows, 1>(stream, args);
  }
  LaunchTiles<kBits, kRows, 4>(stream, args);
}

template <int kBits>
void LaunchStream(gpu::Stream stream, const StreamArgs& args) {
  if (args.rows <= 16) return LaunchRows<kBits, 16>(stream, args);
  if (args.rows <= 32) return LaunchRows<kBits, 32>(stream, args);
  LaunchRows<kBits, 64>(stream, args);
}

// --- many rows: W as bf16, [out, in] from `first` on; a warp has a tile ---
template <int kBits>
__global__ void __launch_bounds__(kThreads)
    UnpackGroupsKernel(const GroupTile<kBits>* tiles,
                       int64_t first_tile,
                       int64_t out,
                       int64_t in,
                       gpu::bf16* w) {
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int64_t along = GroupTilesAlongInputs(in);
  const int64_t tile = int64_t{blockIdx.y};
  const int64_t step = int64_t{blockIdx.x} * kWarps + warp;
  const int64_t row = tile * kGroupTileOutputs + lane / 4;
  if (step >= along || row >= out) return;
  LaneWeights<kBits> weights;
  weights.Load(tiles[(first_tile + tile) * along + step], lane);
  gpu::bf16* const to = w + row * in;
#pragma unroll
  for (int j = 0; j < kGroupTileGroups; ++j) {
    GroupFragment pairs;
    weights.Unpack(pairs, j);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int64_t k =
          step * kDepth + 32 * j + GroupTileInput(lane, int64_t{2} * i);
      if (k < in) *reinterpret_cast<uint32_t*>(to + k) = pairs[i];
    }
  }
}

// Outputs [first, first + out) of the matrix.
template <int kBits>
void Unpack(gpu::Stream stream,
            const GroupProductArgs& args,
            int64_t first,
            int64_t out) {
  const int64_t along = GroupTilesAlongInputs(args.in);
  gpu::launch(stream,
              dim3(static_cast<unsigned>((along + kWarps - 1) / kWarps),
                   static_cast<unsigned>(GroupTilesAlongOutputs(out))),
              kThreads, 0, UnpackGroupsKernel<kBits>,
              reinterpret_cast<const GroupTile<kBits>*>(args.tiles),
              first / kGroupTileOutputs, out, args.in,
              reinterpret_cast<gpu::bf16*>(args.room));
}

void MultiplyUnpacked(gpu::Stream stream, const GroupProductArgs& args) {
  KF_CHECK(args.room != nullptr && args.room_outputs > 0 &&
           args.room_outputs % kGroupTileOutputs == 0);
  for (int64_t first = 0; first < args.out; first += args.room_outputs) {
    const int64_t out = std::min(args.room_outputs, args.out - first);
    if (args.bits == 4) {
      Unpack<4>(stream, args, first, out);
    } else {
      Unpack<8>(stream, args, first, out);
    }
    ProductArgs<Bf16> product;
    product.x = args.x;
    product.w = args.room;
    product.residual =
        args.residual == nullptr ? nullptr : args.residual + first;
    product.y = args.y + first;
    product.rows = args.rows;
    product.in = args.in;
    product.out = out;
    product.stride = args.stride;
    Product(stream, product);
  }
}

}  // namespace

int64_t GroupRoomOutputs(int64_t in, int64_t out) {
  // Whole tiles of the products that read it, and a grid's second dimension of
  // the kernel that fills it.
  constexpr int64_t kBytes = int64_t{64} << 20;
  constexpr int64_t kWhole = 128;
  constexpr int64_t kMostTiles = 65535;
  const int64_t fit =
      std::min(kBytes / (in * static_cast<int64_t>(sizeof(Bf16))),
               kMostTiles * kGroupTileOutputs);
  const int64_t all = GroupTilesAlongOutputs(out) * kGroupTileOutputs;
  return std::min(all, std::max(kWhole, fit / kWhole * kWhole));
}

void GroupProduct(gpu::Stream stream, const GroupProductArgs& args) {
  if (args.rows == 0) return;
  KF_CHECK(args.in % 8 == 0 && args.stride >= args.out);
  KF_CHECK(args.bits == 4 || args.bits == 8);
  if (args.rows > kGroupFewRows) return MultiplyUnpacked(stream, args);
  const StreamArgs few = {reinterpret_cast<const gpu::bf16*>(args.x),
                          args.tiles,
                          args.residual,
                          args.y,
                          args.rows,
                          args.in,
                          args.out,
                          args.stride};
  if (args.bits == 4) {
    LaunchStream<4>(stream, few);
  } else {
    LaunchStream<8>(stream, few);
  }
}

}  // namespace kf::cuda
