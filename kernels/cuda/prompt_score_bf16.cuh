// The tensor-core kernel of prompt_score.cu. Device code.
#pragma once

#include "kernels/cuda/prompt_tile.cuh"
#include "kernels/cuda/unit_gumbel.cuh"

namespace kf::cuda {

template <int kDim>
struct ScoreShared {
  HeadTile<kDim> k;
  HeadTile<kDim> q[2];  // of this step and of the next
};

// The weights of a row, or none: its place among the rows of a tile is not the
// item's, or it is not scored.
struct WeightedRow {
  ScoreRow row;
  bool counts;
};
__device__ __forceinline__ WeightedRow LoadScoreRow(const PromptArgs& args,
                                                    const PromptItem& item,
                                                    int32_t row,
                                                    int32_t query_head) {
  WeightedRow weighted = {{}, false};
  if (row < item.first_row || row >= item.first_row + item.rows ||
      !Scores(item, row)) {
    return weighted;
  }
  const int64_t at = item.batch_row + row - item.first_row;
  weighted.row = args.score_rows[at * args.query_heads + query_head];
  weighted.counts = true;
  return weighted;
}

// What a row gives to the key at `key`, whose logit is x.
template <Weighing kWeighing>
__device__ __forceinline__ float Weight(const PromptHead& head,
                                        const ScoreRow& row,
                                        float x,
                                        int32_t key) {
  const NoiseRow words = {row.a, row.b};
  if constexpr (kWeighing == Weighing::kUnitGumbel) {
    const float weight = gpu::exp2_approx((x - row.top) * kLog2E);
    return TimesUnitGumbel(weight, words, static_cast<uint32_t>(key)) *
           row.inverse_sum;
  } else {
    const float y = x + ZetaOf<kWeighing>(words, key);
    return gpu::exp2_approx((y - row.top) * head.exponent) * row.inverse_sum;
  }
}

// sum[j][c] += the weights of this lane's two rows for its keys 8 j + c.
template <Weighing kWeighing>
__device__ __forceinline__ void AddWeights(float (&sum)[kTileKeyGroups][2],
                                           const float (&x)[kTileKeyGroups][4],
                                           const PromptHead& head,
                                           const WeightedRow (&rows)[2],
                                           int32_t row0,
                                           int32_t first_key) {
#pragma unroll
  for (int j = 0; j < kTileKeyGroups; ++j) {
#pragma unroll
    for (int c = 0; c < 4; ++c) {
      const WeightedRow& from = rows[c / 2];
      const int32_t key = first_key + 8 * j + c % 2;
      // Chosen, not branched on: so that weights are made side by side.
      const float weight = Weight<kWeighing>(head, from.row, x[j][c], key);
      sum[j][c % 2] += from.counts && key <= row0 + c / 2 * 8 ? weight : 0.0F;
    }
  }
}

// Sums over the 16 rows of this warp, in a fixed order, to part[key of the
// tile].
__device__ __forceinline__ void SumWarpRows(
    const float (&sum)[kTileKeyGroups][2], float (&part)[kTile]) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll
  for (int j = 0; j < kTileKeyGroups; ++j) {
#pragma unroll
    for (int c = 0; c < 2; ++c) {
      float x = sum[j][c];
      x += __shfl_xor_sync(gpu::kFullWarp, x, 4);
      x += __shfl_xor_sync(gpu::kFullWarp, x, 8);
      x += __shfl_xor_sync(gpu::kFullWarp, x, 16);
      if (lane < 4) part[8 * j + 2 * lane + c] = x;
    }
  }
}

// Block (kv head, tile of keys, item). A step is one query head's 64 rows.
template <int kDim>
__global__ void __launch_bounds__(kTileThreads)
    ScoreBf16Kernel(PromptArgs args) {
  auto& shared = *gpu::dyn_smem<ScoreShared<kDim>>();
  KF_GPU_SHARED(float[kTileThreads / 32][kTile], part);
  const PromptItem& item = args.items[blockIdx.z];
  const int32_t end = item.first_row + item.rows;
  const auto g = static_cast<int32_t>(blockIdx.x);
  const int32_t first_key = static_cast<int32_t>(blockIdx.y) * kTile;
  if (!item.score.enabled || item.score_first_row >= end || first_key >= end) {
    return;
  }
  const int32_t group = args.query_heads / args.layout.kv_heads;
  // No row of an earlier tile sees a key of this one, or is scored.
  const int32_t first_row =
      max(first_key, max(item.first_row, item.score_first_row) / kTile * kTile);
  const int32_t steps = (end - first_row + kTile - 1) / kTile * group;
  const KeyRows<gpu::bf16, kDim> keys(args, item, g);
  LoadKeys(shared.k, args, item, keys, first_key);
  LoadQueries(shared.q[0], args, item, g * group, first_row);
  gpu::cp_async_commit();

  const int thread = static_cast<int>(threadIdx.x);
  const int warp = thread / 32;
  const int lane = thread % 32;
  const int32_t own_key = first_key + thread;  // of a thread below kTile
  const bool owns = thread < kTile && own_key < end;
  float score = owns ? keys.Score(own_key) : 0.0F;
  float sum[kTileKeyGroups][2] = {};
  for (int32_t step = 0; step < steps; ++step) {
    const int32_t tile_row = first_row + step / group * kTile;
    const int32_t h = g * group + step % group;
    gpu::cp_async_wait<0>();
    // This step's queries have landed, and the other buffer is free.
    __syncthreads();
    if (step + 1 < steps) {
      LoadQueries(shared.q[(step + 1) % 2], args, item,
                  g * group + (step + 1) % group,
                  first_row + (step + 1) / group * kTile);
    }
    gpu::cp_async_commit();
    const int32_t row0 = tile_row + 16 * warp + lane / 4;  // and row0 + 8
    const WeightedRow rows[2] = {LoadScoreRow(args, item, row0, h),
                                 LoadScoreRow(args, item, row0 + 8, h)};
    const int32_t first_own = first_key + lane % 4 * 2;
    float x[kTileKeyGroups][4] = {};
    DotTile(x, shared.q[step % 2], shared.k);
    const PromptHead head = MakePromptHead(args, item, h);
    LogitTile(x, head, row0, first_own);
    WithWeighing(item.score, [&](auto weighing) {
      AddWeights<weighing()>(sum, x, head, rows, row0, first_own);
    });
    if (step % group != group - 1) continue;
    SumWarpRows(sum, part[warp]);
    __syncthreads();
    // By tiles of kPromptRowTile = 32 rows, two warps each.
    if (owns) {
      score += part[0][thread] + part[1][thread];
      score += part[2][thread] + part[3][thread];
    }
#pragma unroll
    for (int j = 0; j < kTileKeyGroups; ++j) sum[j][0] = sum[j][1] = 0.0F;
  }
  gpu::cp_async_wait<0>();
  if (owns) keys.Score(own_key) = score;
}

}  // namespace kf::cuda
