// Device code: parts of decode's working memory, as PlanDecode laid it out.
#pragma once

#include <cstdint>

#include "kernels/cuda/decode_attention.h"
#include "kernels/cuda/gpu.h"

namespace kf::cuda {

// What a chunk of one query head gave; then what the merge makes of it.
struct alignas(16) ChunkStats {
  float largest;  // logit
  float sum;      // of exp(logit - largest)
  // Of a scored row, with y = logit - largest + zeta:
  float noisy_largest;  // y
  float noisy_sum;      // of exp((y - noisy_largest) / tau)
};

// -inf, the largest of nothing, gives no difference of infinities.
__device__ inline float Offset(float largest) {
  return largest == -INFINITY ? 0.0F : largest;
}

template <typename T>
__device__ T* Words(const DecodeWork& work, int64_t offset) {
  return reinterpret_cast<T*>(work.memory + offset);
}

// [chunks] of a query head.
__device__ inline ChunkStats* StatsOf(const DecodeWork& work,
                                      const DecodeItem& item,
                                      int32_t query_head) {
  return Words<ChunkStats>(work, item.stats) +
         int64_t{query_head} * DecodeChunks(item.slots);
}

// [chunks][dp] of a query head: sums of exp(logit - largest) V.
__device__ inline float* SumsOf(const DecodeWork& work,
                                const DecodeItem& item,
                                int32_t query_head) {
  return Words<float>(work, item.sums) + int64_t{query_head} *
                                             DecodeChunks(item.slots) *
                                             work.shape.layout.padded_dim;
}

// [slots] of a query head: exp((y - noisy_largest of the chunk) / tau).
__device__ inline float* NumeratorsOf(const DecodeWork& work,
                                      const DecodeItem& item,
                                      int32_t query_head) {
  return Words<float>(work, item.numerators) +
         int64_t{query_head} * DecodeChunks(item.slots) * kDecodeChunk;
}

}  // namespace kf::cuda
