// The tensor-core kernel of prompt_attention.cu. Device code.
//
// A block owns 64 rows of one (item, query head) and goes over its keys in
// tiles of 64 with an online softmax, clean and noisy side by side. K of the
// next tile is under way while this tile's values are summed, V while its
// logits are made, so that one buffer of each will do.
#pragma once

#include <cmath>

#include "kernels/cuda/prompt_tile.cuh"
#include "kernels/cuda/store_pair.cuh"
#include "kernels/cuda/unit_gumbel.cuh"

namespace kf::cuda {

template <int kDim>
struct AttendShared {
  HeadTile<kDim> q, k, v;
};

// Over the four lanes that share a row.
__device__ __forceinline__ float QuadMax(float x) {
  x = fmaxf(x, __shfl_xor_sync(0xFFFFFFFFU, x, 1));
  return fmaxf(x, __shfl_xor_sync(0xFFFFFFFFU, x, 2));
}
__device__ __forceinline__ float QuadSum(float x) {
  x += __shfl_xor_sync(0xFFFFFFFFU, x, 1);
  return x + __shfl_xor_sync(0xFFFFFFFFU, x, 2);
}

// The running softmax of one row: sum 2^((y - top) exponent) over keys so far.
struct RunningSum {
  float top = -INFINITY;
  float sum = 0.0F;

  // Raises `top`; returns what everything summed so far is multiplied by.
  __device__ __forceinline__ float Raise(float new_top, float exponent) {
    const float factor = gpu::exp2_approx((top - new_top) * exponent);
    top = new_top;
    sum *= factor;
    return factor;
  }
};

// Adds a tile's keys to the noisy sum of row `r` (0: g, 1: g + 8) of x.
template <Weighing kWeighing>
__device__ __forceinline__ void AddNoisy(RunningSum& noisy,
                                         const float (&x)[kTileKeyGroups][4],
                                         int r,
                                         NoiseRow words,
                                         float exponent,
                                         int32_t first_key) {
  float y[kTileKeyGroups][2];
  float top = noisy.top;
#pragma unroll
  for (int j = 0; j < kTileKeyGroups; ++j) {
#pragma unroll
    for (int c = 0; c < 2; ++c) {
      y[j][c] =
          x[j][2 * r + c] + ZetaOf<kWeighing>(words, first_key + 8 * j + c);
      top = fmaxf(top, y[j][c]);
    }
  }
  noisy.Raise(QuadMax(top), exponent);
  float sum = 0.0F;
#pragma unroll
  for (int j = 0; j < kTileKeyGroups; ++j) {
#pragma unroll
    for (int c = 0; c < 2; ++c) {
      sum += gpu::exp2_approx((y[j][c] - noisy.top) * exponent);
    }
  }
  noisy.sum += QuadSum(sum);
}

// The same for kUnitGumbel, after AddClean: the weights p times e^zeta, with
// the clean maximum as the noisy one.
__device__ __forceinline__ void AddUnitNoisy(
    RunningSum& noisy,
    const RunningSum& clean,
    float factor,
    const float (&p)[kTileKeyGroups][4],
    int r,
    NoiseRow words,
    int32_t first_key) {
  float sum = 0.0F;
#pragma unroll
  for (int j = 0; j < kTileKeyGroups; ++j) {
#pragma unroll
    for (int c = 0; c < 2; ++c) {
      sum += TimesUnitGumbel(p[j][2 * r + c], words,
                             static_cast<uint32_t>(first_key + 8 * j + c));
    }
  }
  noisy.top = clean.top;
  noisy.sum = fmaf(noisy.sum, factor, QuadSum(sum));
}

// Adds a tile's keys to the clean sum, and puts 2^(x - top) in place of x;
// returns the factor of what has been summed before.
__device__ __forceinline__ float AddClean(RunningSum& clean,
                                          float (&x)[kTileKeyGroups][4],
                                          int r) {
  float top = clean.top;
#pragma unroll
  for (int j = 0; j < kTileKeyGroups; ++j) {
    top = fmaxf(top, fmaxf(x[j][2 * r], x[j][2 * r + 1]));
  }
  const float factor = clean.Raise(QuadMax(top), kLog2E);
  float sum = 0.0F;
#pragma unroll
  for (int j = 0; j < kTileKeyGroups; ++j) {
#pragma unroll
    for (int c = 0; c < 2; ++c) {
      float& p = x[j][2 * r + c];
      p = gpu::exp2_approx((p - clean.top) * kLog2E);
      sum += p;
    }
  }
  clean.sum += QuadSum(sum);
  return factor;
}

// On the diagonal: keys after their row weigh nothing.
__device__ __forceinline__ void MaskLaterKeys(float (&x)[kTileKeyGroups][4],
                                              int32_t row0,
                                              int32_t first_key) {
#pragma unroll
  for (int j = 0; j < kTileKeyGroups; ++j) {
#pragma unroll
    for (int c = 0; c < 4; ++c) {
      if (first_key + 8 * j + c % 2 > row0 + c / 2 * 8) x[j][c] = -INFINITY;
    }
  }
}

// out += P V; p as AddClean left it.
template <int kDim>
__device__ __forceinline__ void AddValues(float (&out)[kDim / 8][4],
                                          const float (&p)[kTileKeyGroups][4],
                                          const HeadTile<kDim>& values) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll
  for (int k = 0; k < kTile / 16; ++k) {
    const uint32_t weights[4] = {
        gpu::pack_bf16(p[2 * k][0], p[2 * k][1]),
        gpu::pack_bf16(p[2 * k][2], p[2 * k][3]),
        gpu::pack_bf16(p[2 * k + 1][0], p[2 * k + 1][1]),
        gpu::pack_bf16(p[2 * k + 1][2], p[2 * k + 1][3])};
#pragma unroll
    for (int j = 0; j < kDim / 8; j += 2) {
      uint32_t v[4];
      gpu::ldmatrix_x4_trans(
          v, &values.at[16 * k + lane % 16][8 * j + lane / 16 * 8]);
      gpu::mma_16816(out[j], weights, v[0], v[1]);
      gpu::mma_16816(out[j + 1], weights, v[2], v[3]);
    }
  }
}

// Block (query head, row tile from the last, item).
template <int kDim>
__global__ void __launch_bounds__(kTileThreads)
    AttendBf16Kernel(PromptArgs args) {
  auto& shared = *gpu::dyn_smem<AttendShared<kDim>>();
  const PromptItem& item = args.items[blockIdx.z];
  const int32_t end = item.first_row + item.rows;
  const auto h = static_cast<int32_t>(blockIdx.x);
  const int32_t tile =
      item.first_row / kTile + static_cast<int32_t>(gridDim.y - 1 - blockIdx.y);
  const int32_t first_row = tile * kTile;
  if (first_row >= end) return;
  const KeyRows<gpu::bf16, kDim> keys(
      args, item, h / (args.query_heads / args.layout.kv_heads));
  const PromptHead head = MakePromptHead(args, item, h);
  const auto load_values = [&](int32_t first) {
    LoadTile(shared.v, first, 0, end,
             reinterpret_cast<const gpu::bf16*>(args.queries),
             [&](int32_t position) { return keys.Value(position); });
  };
  LoadQueries(shared.q, args, item, h, first_row);
  LoadKeys(shared.k, args, item, keys, 0);
  gpu::cp_async_commit();
  load_values(0);
  gpu::cp_async_commit();

  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int32_t row0 = first_row + 16 * warp + lane / 4;  // and row0 + 8
  const bool scored = Scores(item, first_row + kTile - 1);
  NoiseRow words[2] = {};
  if (scored) {
    words[0] = NoiseWords(item.score, row0, args.layer, h);
    words[1] = NoiseWords(item.score, row0 + 8, args.layer, h);
  }
  RunningSum clean[2];
  RunningSum noisy[2];
  float out[kDim / 8][4] = {};
  for (int32_t t = 0; t <= tile; ++t) {
    gpu::cp_async_wait<1>();  // K has landed, V may be under way
    __syncthreads();
    float x[kTileKeyGroups][4] = {};
    DotTile(x, shared.q, shared.k);
    __syncthreads();  // K is free
    if (t < tile) LoadKeys(shared.k, args, item, keys, (t + 1) * kTile);
    gpu::cp_async_commit();
    const int32_t first_key = t * kTile + lane % 4 * 2;
    LogitTile(x, head, row0, first_key);
    if (t == tile) MaskLaterKeys(x, row0, first_key);
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      float factor = 1.0F;
      if (!scored) {
        factor = AddClean(clean[r], x, r);
      } else {
        WithWeighing(item.score, [&](auto weighing) {
          if constexpr (weighing() == Weighing::kUnitGumbel) {
            factor = AddClean(clean[r], x, r);
            AddUnitNoisy(noisy[r], clean[r], factor, x, r, words[r], first_key);
          } else {
            AddNoisy<weighing()>(noisy[r], x, r, words[r], head.exponent,
                                 first_key);
            factor = AddClean(clean[r], x, r);
          }
        });
      }
#pragma unroll
      for (int j = 0; j < kDim / 8; ++j) {
        out[j][2 * r] *= factor;
        out[j][2 * r + 1] *= factor;
      }
    }
    gpu::cp_async_wait<1>();  // V has landed, the next K may be under way
    __syncthreads();
    AddValues(out, x, shared.v);
    __syncthreads();  // V is free
    if (t < tile) load_values((t + 1) * kTile);
    gpu::cp_async_commit();
  }
  gpu::cp_async_wait<0>();
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const int32_t row = row0 + 8 * r;
    if (row < item.first_row || row >= end) continue;
    const int64_t at =
        (item.batch_row + row - item.first_row) * args.query_heads + h;
    const float inverse = 1.0F / clean[r].sum;
#pragma unroll
    for (int j = 0; j < kDim / 8; ++j) {
      const int channel = 8 * j + lane % 4 * 2;
      if (channel >= args.layout.head_dim) continue;
      StorePair(args.out + at * args.layout.head_dim + channel,
                out[j][2 * r] * inverse, out[j][2 * r + 1] * inverse);
    }
    if (lane % 4 == 0 && Scores(item, row)) {
      args.score_rows[at] = {noisy[r].top, 1.0F / noisy[r].sum, words[r].a,
                             words[r].b};
    }
  }
}

}  // namespace kf::cuda
