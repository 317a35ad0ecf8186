// The chunks of a decode step's attention: logits, their softmax and its noisy
// twin within the chunk, and the weighted sum of V.
#include <type_traits>

#include "kernels/cuda/decode_attention.h"
#include "kernels/cuda/decode_chunk.cuh"
#include "kernels/cuda/decode_chunk_bf16.cuh"
#include "kernels/cuda/decode_chunk_f32.cuh"
#include "kernels/cuda/decode_row.cuh"
#include "kernels/cuda/gpu.h"
#include "kernels/cuda/head_dim.h"
#include "kernels/cuda/score.cuh"
#include "kernels/cuda/warp.cuh"

namespace kf::cuda {
namespace {

constexpr int kLogitsEach = kDecodeChunk / 32;  // of a lane

template <typename T, int kDim>
using ChunkKernels = std::
    conditional_t<std::is_same_v<T, float>, ChunkF32<kDim>, ChunkBf16<kDim>>;

// A block's chunk of one (row, kv head), and up to kGroup of its query heads.
struct Place {
  int32_t chunk;
  int32_t head;
  int32_t first_query;  // of the model's query heads
};

template <typename T, int kDim>
__device__ Chunk<T, kDim> MakeChunk(const DecodeWork& work,
                                    const DecodeItem& item,
                                    const Place& place) {
  const DecodeShape& shape = work.shape;
  const int32_t group = shape.query_heads / shape.layout.kv_heads;
  const int32_t first_slot = place.chunk * kDecodeChunk;
  Chunk<T, kDim> chunk;
  chunk.list = item.cache;
  if (item.chosen != kNoMemory) {
    chunk.list.pages = Words<int32_t>(work, item.chosen) +
                       int64_t{place.head} * item.read_pages;
  }
  chunk.list.pages += first_slot / kSlots;
  chunk.kv_heads = shape.layout.kv_heads;
  chunk.head = place.head;
  chunk.slots = min(kDecodeChunk, item.slots - first_slot);
  chunk.group = min(kGroup, (place.head + 1) * group - place.first_query);
  chunk.queries =
      Words<T>(work, work.plan.queries) +
      (int64_t{blockIdx.z} * shape.query_heads + place.first_query) * kDim;
  chunk.scale = 1.0F / sqrtf(static_cast<float>(shape.layout.head_dim));
  chunk.rotary_dim = shape.rotary_dim;
  if (item.rank_positions) {
    chunk.ranks = Words<int32_t>(work, item.ranks) +
                  int64_t{place.head} * item.slots + first_slot;
    chunk.rotations = shape.rotary_dim == 0
                          ? nullptr
                          : Words<float>(work, work.plan.rotations);
  }
  return chunk;
}

// A warp turns the logits of a query head into exp(logit - largest), in place,
// 0 beyond the slots, and the noisy ones into numerators.
__device__ void ChunkSoftmax(const DecodeWork& work,
                             const DecodeItem& item,
                             const Place& place,
                             int32_t slots,
                             int32_t query_head,
                             float* logits) {
  const auto lane = static_cast<int32_t>(threadIdx.x % 32);
  float x[kLogitsEach];
  ChunkStats stats = {-INFINITY, 0.0F, -INFINITY, 0.0F};
  for (int i = 0; i < kLogitsEach; ++i) {
    const int32_t slot = lane + 32 * i;
    x[i] = slot < slots ? logits[slot] : -INFINITY;
    stats.largest = fmaxf(stats.largest, x[i]);
  }
  stats.largest = WarpMax(stats.largest);
  const float offset = Offset(stats.largest);
  for (int i = 0; i < kLogitsEach; ++i) {
    x[i] -= offset;
    const float p = expf(x[i]);
    logits[lane + 32 * i] = p;
    stats.sum += p;
  }
  stats.sum = WarpSum(stats.sum);
  if (item.score.enabled) {
    const NoiseRow words =
        NoiseWords(item.score, item.position, work.layer, query_head);
    const int32_t first = place.chunk * kDecodeChunk;
    for (int i = 0; i < kLogitsEach; ++i) {
      const int32_t slot = lane + 32 * i;
      if (slot < slots) {
        const int32_t position = *PositionAt(work.shape.layout, item.cache,
                                             place.head, first + slot);
        x[i] += Zeta(item.score.noise, words, static_cast<uint32_t>(position));
      }
      stats.noisy_largest = fmaxf(stats.noisy_largest, x[i]);
    }
    stats.noisy_largest = WarpMax(stats.noisy_largest);
    const float noisy_offset = Offset(stats.noisy_largest);
    float* numerators = NumeratorsOf(work, item, query_head) + first;
    for (int i = 0; i < kLogitsEach; ++i) {
      const float p = expf((x[i] - noisy_offset) / item.score.tau);
      numerators[lane + 32 * i] = p;
      stats.noisy_sum += p;
    }
    stats.noisy_sum = WarpSum(stats.noisy_sum);
  }
  if (lane == 0) StatsOf(work, item, query_head)[place.chunk] = stats;
}

// Block (chunk, kv head and part of its group, row).
template <typename T, int kDim, bool kRanked>
__global__ void __launch_bounds__(kSplitThreads, kDim > 128 ? 2 : 4)
    DecodeSplitKernel(DecodeWork work) {
  using Kernels = ChunkKernels<T, kDim>;
  const DecodeItem& item = work.items[blockIdx.z];
  const DecodeShape& shape = work.shape;
  Place place;
  place.chunk = static_cast<int32_t>(blockIdx.x);
  if (place.chunk >= DecodeChunks(item.slots)) return;
  if (item.rank_positions != kRanked) return;
  place.head = static_cast<int32_t>(blockIdx.y) % shape.layout.kv_heads;
  place.first_query =
      place.head * (shape.query_heads / shape.layout.kv_heads) +
      static_cast<int32_t>(blockIdx.y) / shape.layout.kv_heads * kGroup;
  auto* logits = gpu::dyn_smem<float>();  // [kGroup][kLogitStride]
  T* values = reinterpret_cast<T*>(logits + kGroup * kLogitStride);
  const Chunk<T, kDim> chunk = MakeChunk<T, kDim>(work, item, place);

  Kernels::StartValues(chunk, values);
  Kernels::template Logits<kRanked>(chunk, logits);
  __syncthreads();  // a warp reads logits of other warps
  for (auto j = static_cast<int32_t>(threadIdx.x / 32); j < chunk.group;
       j += kSplitWarps) {
    ChunkSoftmax(work, item, place, chunk.slots, place.first_query + j,
                 logits + j * kLogitStride);
  }
  gpu::cp_async_wait<0>();
  __syncthreads();  // the weights, and the values that other threads copied
  Kernels::WeightedSums(
      chunk, values, logits, [&](int32_t j, int32_t channel, float sum) {
        SumsOf(work, item,
               place.first_query + j)[place.chunk * kDim + channel] = sum;
      });
}

template <typename T, int kDim>
void Launch(gpu::Stream stream, const DecodeWork& work) {
  const DecodeShape& shape = work.shape;
  const int32_t group = shape.query_heads / shape.layout.kv_heads;
  const dim3 grid(static_cast<unsigned>(work.plan.max_chunks),
                  static_cast<unsigned>(shape.layout.kv_heads *
                                        ((group + kGroup - 1) / kGroup)),
                  static_cast<unsigned>(work.rows));
  const size_t shared = kGroup * kLogitStride * sizeof(float) +
                        ChunkKernels<T, kDim>::kSharedBytes;
  gpu::launch(stream, grid, kSplitThreads, shared,
              DecodeSplitKernel<T, kDim, false>, work);
  if (work.plan.ranks > 0) {
    gpu::launch(stream, grid, kSplitThreads, shared,
                DecodeSplitKernel<T, kDim, true>, work);
  }
}

}  // namespace

void DecodeSplit(gpu::Stream stream, const DecodeWork& work) {
  WithHeadDim(work.shape.layout.padded_dim, [&](auto dim) {
    if (work.shape.layout.element_bytes == 4) {
      Launch<float, dim()>(stream, work);
    } else {
      Launch<gpu::bf16, dim()>(stream, work);
    }
  });
}

}  // namespace kf::cuda
