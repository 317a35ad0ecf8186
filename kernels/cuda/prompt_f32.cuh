// The exact kernels of prompt_attention.cu and prompt_score.cu: f32, by fused
// multiply-adds. Device code.
//
// A lane holds one key of a tile of 32; a warp takes whole rows.
#pragma once

#include <cmath>

#include "kernels/cuda/block_reduce.cuh"
#include "kernels/cuda/prompt_device.cuh"
#include "kernels/cuda/warp.cuh"

namespace kf::cuda {

inline constexpr int kExactThreads = 128;
inline constexpr int kExactWarps = kExactThreads / kWarp;
inline constexpr int kExactKeys = 32;
inline constexpr int kExactRows = 16;  // of an attention block
inline constexpr int kRowsOfWarp = kExactRows / kExactWarps;
inline constexpr int kScoreTileRows = 32;  // kPromptRowTile

// One more 16-byte chunk than a row holds, for the sake of the banks.
template <int kRows, int kDim>
struct ExactTile {
  alignas(16) float at[kRows][kDim + 4];
};

// Copies rows [first, first + kRows); rows outside [begin, end) are 0.
template <int kRows, int kDim, typename Row>
__device__ __forceinline__ void LoadExact(ExactTile<kRows, kDim>& tile,
                                          int32_t first,
                                          int32_t begin,
                                          int32_t end,
                                          const Row& row) {
  constexpr int kChunks = kDim / 4;
  for (int i = static_cast<int>(threadIdx.x); i < kRows * kChunks;
       i += kExactThreads) {
    const int32_t r = first + i / kChunks;
    const int c = i % kChunks * 4;
    float4 x = make_float4(0.0F, 0.0F, 0.0F, 0.0F);
    if (r >= begin && r < end) x = *reinterpret_cast<const float4*>(row(r) + c);
    *reinterpret_cast<float4*>(&tile.at[i / kChunks][c]) = x;
  }
}

template <int kRows, int kDim>
__device__ __forceinline__ void LoadExactQueries(ExactTile<kRows, kDim>& tile,
                                                 const PromptArgs& args,
                                                 const PromptItem& item,
                                                 int32_t query_head,
                                                 int32_t first) {
  const auto* queries = reinterpret_cast<const float*>(args.queries);
  LoadExact(tile, first, item.first_row, item.first_row + item.rows,
            [&](int32_t row) {
              const int64_t at = item.batch_row + row - item.first_row;
              return queries + (at * args.query_heads + query_head) * kDim;
            });
}

// q . k, one chain of fused multiply-adds.
template <int kDim>
__device__ __forceinline__ float ExactDot(const float* q, const float* k) {
  float sum = 0.0F;
#pragma unroll 2
  for (int c = 0; c < kDim; c += 4) {
    const float4 a = *reinterpret_cast<const float4*>(q + c);
    const float4 b = *reinterpret_cast<const float4*>(k + c);
    sum = fmaf(a.x, b.x, sum);
    sum = fmaf(a.y, b.y, sum);
    sum = fmaf(a.z, b.z, sum);
    sum = fmaf(a.w, b.w, sum);
  }
  return sum;
}

// Sum 2^((y - top) exponent) over keys so far.
struct ExactSum {
  float top = -INFINITY;
  float sum = 0.0F;
  // Of the last Add: what everything before was multiplied by.
  float factor = 1.0F;

  // Adds each lane's y; returns the lane's weight.
  __device__ __forceinline__ float Add(float y, float exponent) {
    const float new_top = fmaxf(top, WarpMax(y));
    factor = exp2f((top - new_top) * exponent);
    top = new_top;
    const float weight = exp2f((y - top) * exponent);
    sum = sum * factor + WarpSum(weight);
    return weight;
  }
};

template <int kDim>
struct AttendExactShared {
  ExactTile<kExactRows, kDim> q;
  ExactTile<kExactKeys, kDim> k, v;
  float weights[kExactRows][kExactKeys];
};

// Block (query head, row tile from the last, item).
template <int kDim>
__global__ void __launch_bounds__(kExactThreads, 4)
    AttendF32Kernel(PromptArgs args) {
  auto& shared = *gpu::dyn_smem<AttendExactShared<kDim>>();
  const PromptItem& item = args.items[blockIdx.z];
  const int32_t end = item.first_row + item.rows;
  const auto h = static_cast<int32_t>(blockIdx.x);
  const int32_t first_row =
      item.first_row +
      static_cast<int32_t>(gridDim.y - 1 - blockIdx.y) * kExactRows;
  if (first_row >= end) return;
  const KeyRows<float, kDim> keys(
      args, item, h / (args.query_heads / args.layout.kv_heads));
  const PromptHead head = MakePromptHead(args, item, h);
  LoadExactQueries(shared.q, args, item, h, first_row);

  constexpr int kChannels = (kDim + kWarp - 1) / kWarp;  // of a lane
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int row_in_tile = warp * kRowsOfWarp;
  ExactSum clean[kRowsOfWarp];
  ExactSum noisy[kRowsOfWarp];
  NoiseRow words[kRowsOfWarp] = {};
#pragma unroll
  for (int i = 0; i < kRowsOfWarp; ++i) {
    const int32_t row = first_row + row_in_tile + i;
    if (Scores(item, row)) {
      words[i] = NoiseWords(item.score, row, args.layer, h);
    }
  }
  float out[kRowsOfWarp][kChannels] = {};
  const int32_t last_tile = (first_row + kExactRows - 1) / kExactKeys;
  for (int32_t t = 0; t <= last_tile; ++t) {
    const int32_t first_key = t * kExactKeys;
    LoadExact(shared.k, first_key, 0, end,
              [&](int32_t position) { return keys.Key(position); });
    LoadExact(shared.v, first_key, 0, end,
              [&](int32_t position) { return keys.Value(position); });
    __syncthreads();
    const int32_t key = first_key + lane;
#pragma unroll
    for (int i = 0; i < kRowsOfWarp; ++i) {
      const int32_t row = first_row + row_in_tile + i;
      const float dot =
          ExactDot<kDim>(shared.q.at[row_in_tile + i], shared.k.at[lane]);
      const float x = key <= row ? Logit(head, dot, row, key) : -INFINITY;
      shared.weights[row_in_tile + i][lane] = clean[i].Add(x, kLog2E);
      if (Scores(item, row)) {
        const float zeta =
            Zeta(item.score.noise, words[i], static_cast<uint32_t>(key));
        noisy[i].Add(x + zeta, head.exponent);
      }
    }
    __syncwarp();
#pragma unroll
    for (int i = 0; i < kRowsOfWarp; ++i) {
#pragma unroll
      for (int j = 0; j < kChannels; ++j) {
        const int channel = lane + kWarp * j;
        if (channel >= kDim) continue;
        float sum = out[i][j] * clean[i].factor;
#pragma unroll 4
        for (int k = 0; k < kExactKeys; ++k) {
          sum = fmaf(shared.weights[row_in_tile + i][k],
                     shared.v.at[k][channel], sum);
        }
        out[i][j] = sum;
      }
    }
    __syncthreads();  // the next tile overwrites K and V
  }
#pragma unroll
  for (int i = 0; i < kRowsOfWarp; ++i) {
    const int32_t row = first_row + row_in_tile + i;
    if (row >= end) continue;
    const int64_t at =
        (item.batch_row + row - item.first_row) * args.query_heads + h;
#pragma unroll
    for (int j = 0; j < kChannels; ++j) {
      const int channel = lane + kWarp * j;
      if (channel >= args.layout.head_dim) continue;
      args.out[at * args.layout.head_dim + channel] = out[i][j] / clean[i].sum;
    }
    if (lane == 0 && Scores(item, row)) {
      args.score_rows[at] = {noisy[i].top, 1.0F / noisy[i].sum, words[i].a,
                             words[i].b};
    }
  }
}

template <int kDim>
struct ScoreExactShared {
  ExactTile<kScoreTileRows, kDim> q;
  ExactTile<kExactKeys, kDim> k;
  float part[kExactWarps][kExactKeys];
};

// Block (kv head, tile of keys, item).
template <int kDim>
__global__ void __launch_bounds__(kExactThreads, 4)
    ScoreF32Kernel(PromptArgs args) {
  auto& shared = *gpu::dyn_smem<ScoreExactShared<kDim>>();
  const PromptItem& item = args.items[blockIdx.z];
  const int32_t end = item.first_row + item.rows;
  const auto g = static_cast<int32_t>(blockIdx.x);
  const int32_t first_key = static_cast<int32_t>(blockIdx.y) * kExactKeys;
  if (!item.score.enabled || item.score_first_row >= end || first_key >= end) {
    return;
  }
  const int32_t group = args.query_heads / args.layout.kv_heads;
  const KeyRows<float, kDim> keys(args, item, g);
  LoadExact(shared.k, first_key, 0, end,
            [&](int32_t position) { return keys.Key(position); });
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int32_t key = first_key + lane;
  const bool owns = warp == 0 && key < end;
  float score = owns ? keys.Score(key) : 0.0F;
  const int32_t first_scored = max(item.first_row, item.score_first_row);
  for (int32_t tile_row =
           max(first_key, first_scored / kScoreTileRows * kScoreTileRows);
       tile_row < end; tile_row += kScoreTileRows) {
    float sum = 0.0F;
    for (int32_t h = g * group; h < (g + 1) * group; ++h) {
      const PromptHead head = MakePromptHead(args, item, h);
      __syncthreads();  // the queries of the head before are done with
      LoadExactQueries(shared.q, args, item, h, tile_row);
      __syncthreads();
      WithNoise(item.score.noise, [&](auto noise) {
        for (int i = warp; i < kScoreTileRows; i += kExactWarps) {
          const int32_t row = tile_row + i;
          const bool counts = row >= first_scored && row < end;
          const int64_t at =
              (item.batch_row + row - item.first_row) * args.query_heads + h;
          ScoreRow from = {};
          if (counts) from = args.score_rows[at];
          const float dot = ExactDot<kDim>(shared.q.at[i], shared.k.at[lane]);
          const float y =
              Logit(head, dot, row, key) +
              Zeta(noise(), {from.a, from.b}, static_cast<uint32_t>(key));
          const float weight =
              exp2f((y - from.top) * head.exponent) * from.inverse_sum;
          sum += counts && key <= row ? weight : 0.0F;
        }
      });
    }
    shared.part[warp][lane] = sum;
    __syncthreads();
    if (owns) {
      score += (shared.part[0][lane] + shared.part[1][lane]) +
               (shared.part[2][lane] + shared.part[3][lane]);
    }
  }
  if (owns) keys.Score(key) = score;
}

}  // namespace kf::cuda
