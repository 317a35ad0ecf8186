// The last launch of a decode step's attention: the chunks of a (row, kv head)
// come together, in order; scores are added, and one token leaves.
#include "kernels/cuda/block_reduce.cuh"
#include "kernels/cuda/decode_attention.h"
#include "kernels/cuda/decode_row.cuh"
#include "kernels/cuda/gpu.h"
#include "kernels/cuda/page_access.cuh"
#include "kernels/cuda/score.cuh"
#include "kernels/cuda/victim.cuh"
#include "kernels/cuda/warp.cuh"

namespace kf::cuda {
namespace {

constexpr int kMergeThreads = 256;
constexpr int32_t kMergeWarps = kMergeThreads / kWarp;

// One (row, kv head).
struct Place {
  int32_t row;
  int32_t head;
  int32_t first_query;
  int32_t group;
  int32_t chunks;
};

// A warp replaces a query head's statistics by what a chunk counts for: `sum`
// of the output, `noisy_sum` of the scores.
__device__ void WeighChunks(const DecodeItem& item,
                            int32_t chunks,
                            int32_t lane,
                            ChunkStats* stats) {
  float largest = -INFINITY;
  float noisy_largest = -INFINITY;
  for (int32_t c = lane; c < chunks; c += kWarp) {
    largest = fmaxf(largest, stats[c].largest);
    noisy_largest =
        fmaxf(noisy_largest, Offset(stats[c].largest) + stats[c].noisy_largest);
  }
  largest = WarpMax(largest);
  noisy_largest = WarpMax(noisy_largest);
  const auto weight = [&](const ChunkStats& s) {
    return expf(s.largest - largest);
  };
  const auto noisy_weight = [&](const ChunkStats& s) {
    return expf((Offset(s.largest) + s.noisy_largest - noisy_largest) /
                item.score.tau);
  };
  float sum = 0.0F;
  float noisy_sum = 0.0F;
  for (int32_t c = lane; c < chunks; c += kWarp) {
    sum += stats[c].sum * weight(stats[c]);
    if (item.score.enabled) {
      noisy_sum += stats[c].noisy_sum * noisy_weight(stats[c]);
    }
  }
  sum = WarpSum(sum);
  noisy_sum = WarpSum(noisy_sum);
  for (int32_t c = lane; c < chunks; c += kWarp) {
    const ChunkStats s = stats[c];
    stats[c].sum = weight(s) / sum;
    if (item.score.enabled) stats[c].noisy_sum = noisy_weight(s) / noisy_sum;
  }
}

__device__ void WriteOutput(const DecodeWork& work,
                            const DecodeItem& item,
                            const Place& place) {
  const int32_t d = work.shape.layout.head_dim;
  const int32_t padded = work.shape.layout.padded_dim;
  float* out =
      work.out +
      (int64_t{place.row} * work.shape.query_heads + place.first_query) * d;
  for (auto i = static_cast<int32_t>(threadIdx.x); i < place.group * d;
       i += kMergeThreads) {
    const int32_t query_head = place.first_query + i / d;
    const ChunkStats* stats = StatsOf(work, item, query_head);
    const float* sums = SumsOf(work, item, query_head) + i % d;
    float sum = 0.0F;
    for (int32_t c = 0; c < place.chunks; ++c) {
      sum = fmaf(stats[c].sum, sums[int64_t{c} * padded], sum);
    }
    out[i] = sum;
  }
}

// Of an idle row.
__device__ void ClearOutput(const DecodeWork& work, const Place& place) {
  const int32_t d = work.shape.layout.head_dim;
  float* out =
      work.out +
      (int64_t{place.row} * work.shape.query_heads + place.first_query) * d;
  for (auto i = static_cast<int32_t>(threadIdx.x); i < place.group * d;
       i += kMergeThreads) {
    out[i] = 0.0F;
  }
}

// What the row gives to the token in `slot`: the sum over the group.
__device__ float ScoreOfSlot(const DecodeWork& work,
                             const DecodeItem& item,
                             const Place& place,
                             int32_t slot) {
  float sum = 0.0F;
  for (int32_t j = 0; j < place.group; ++j) {
    const int32_t query_head = place.first_query + j;
    sum = fmaf(NumeratorsOf(work, item, query_head)[slot],
               StatsOf(work, item, query_head)[slot / kDecodeChunk].noisy_sum,
               sum);
  }
  return sum;
}

// Adds scores, or writes them for AddRowScores; this thread's worst candidate.
__device__ Victim AddScores(const DecodeWork& work,
                            const DecodeItem& item,
                            const Place& place,
                            bool evict) {
  const PageLayout& layout = work.shape.layout;
  const int32_t slots = item.held + 1;
  Victim worst;
  for (auto slot = static_cast<int32_t>(threadIdx.x); slot < slots;
       slot += kMergeThreads) {
    const float added =
        item.score.enabled ? ScoreOfSlot(work, item, place, slot) : 0.0F;
    if (item.row_scores != nullptr) {
      item.row_scores[int64_t{place.head} * slots + slot] = added;
      continue;
    }
    float* score = ScoreAt(layout, item.cache, place.head, slot);
    const float total = item.score.enabled ? *score + added : *score;
    if (item.score.enabled) *score = total;
    const int32_t position = *PositionAt(layout, item.cache, place.head, slot);
    if (evict && position <= item.position - item.recent) {
      worst = WorseOf(
          worst, MakeVictim(RankOf(total, item.age, position), position, slot));
    }
  }
  return worst;
}

// Block (kv head, row).
__global__ void __launch_bounds__(kMergeThreads)
    DecodeMergeKernel(DecodeWork work) {
  Place place;
  place.row = static_cast<int32_t>(blockIdx.y);
  place.head = static_cast<int32_t>(blockIdx.x);
  const DecodeItem& item = work.items[place.row];
  place.group = work.shape.query_heads / work.shape.layout.kv_heads;
  place.first_query = place.head * place.group;
  if (item.slots == 0) {
    ClearOutput(work, place);
    return;
  }
  place.chunks = DecodeChunks(item.slots);
  const auto thread = static_cast<int32_t>(threadIdx.x);
  for (int32_t j = thread / kWarp; j < place.group; j += kMergeWarps) {
    WeighChunks(item, place.chunks, thread % kWarp,
                StatsOf(work, item, place.first_query + j));
  }
  __syncthreads();  // all warps' weights
  WriteOutput(work, item, place);
  const bool full = item.held + 1 > item.budget;
  const bool evict = full && !item.defer_eviction;
  Victim worst;
  if (item.score.enabled || item.row_scores != nullptr || evict) {
    worst = AddScores(work, item, place, evict);
  }
  // Other rows of a run are still at work on its slots: the last one decides.
  if (item.defer_eviction || item.continued) return;
  const int32_t victim =
      evict ? WorstOfBlock<kMergeThreads>(worst) : item.held + 1;
  if (thread == 0) item.free_slot[place.head] = victim;
}

}  // namespace

void DecodeMerge(gpu::Stream stream, const DecodeWork& work) {
  const dim3 grid(static_cast<unsigned>(work.shape.layout.kv_heads),
                  static_cast<unsigned>(work.rows));
  gpu::launch(stream, grid, kMergeThreads, 0, DecodeMergeKernel, work);
}

}  // namespace kf::cuda
