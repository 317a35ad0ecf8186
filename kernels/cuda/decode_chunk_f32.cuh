// Device code: the two products of a chunk by plain FMA, for an f32 cache.
//
// Four lanes share a key, each reading 16 bytes at a time; K stays in registers
// for all queries of the group. V is read by 16 bytes as well: a thread owns
// four channels of every kLanes-th slot, and the lanes' sums are added in
// order.
#pragma once

#include <cstdint>

#include "kernels/cuda/block_reduce.cuh"
#include "kernels/cuda/decode_chunk.cuh"
#include "kernels/cuda/gpu.h"
#include "kernels/cuda/rotary.cuh"

namespace kf::cuda {

template <int kDim>
struct ChunkF32 {
  using T = float;
  using View = Chunk<T, kDim>;

  static constexpr int kSteps = kDim / 16;  // float4 of a lane
  static constexpr int kQuads = kDim / 4;   // float4 of a row
  static constexpr int kLanes = kSplitThreads / kQuads;
  static constexpr size_t kSharedBytes = kLanes * kGroup * kDim * sizeof(T);

  static __device__ void StartValues(const View&, T*) {}

  static __device__ float4 Load(const float* from) {
    const uint4 x = *reinterpret_cast<const uint4*>(from);
    return make_float4(__uint_as_float(x.x), __uint_as_float(x.y),
                       __uint_as_float(x.z), __uint_as_float(x.w));
  }

  static __device__ float4 Rotated(float4 x, const float* cos_sin) {
    const float2 a = RotatePair(make_float2(x.x, x.y),
                                *reinterpret_cast<const float2*>(cos_sin));
    return make_float4(a.x, a.y, x.z, x.w);
  }
  // Of the four channels from `channel`, those below rotary_dim, which is even.
  static __device__ float4 RotatedQuad(float4 x,
                                       int32_t channel,
                                       const float* rotation,
                                       int32_t rotary_dim) {
    if (channel < rotary_dim) x = Rotated(x, rotation + channel);
    if (channel + 2 < rotary_dim) {
      const float4 y =
          Rotated(make_float4(x.z, x.w, 0.0F, 0.0F), rotation + channel + 2);
      x.z = y.x;
      x.w = y.y;
    }
    return x;
  }

  template <bool kRanked>
  static __device__ void Logits(const View& chunk, float* logits) {
    const auto thread = static_cast<int32_t>(threadIdx.x);
    const int32_t t = thread % 4;
    const int32_t end = PagesFor(chunk.slots) * kSlots;
    for (int32_t first = 0; first < end; first += kSplitThreads / 4) {
      const int32_t slot = first + thread / 4;
      const bool valid = slot < chunk.slots;
      const auto* block = chunk.Block(valid ? slot / kSlots : 0);
      float4 k[kSteps];
      for (int s = 0; s < kSteps; ++s) {
        k[s] = valid ? Load(block->k[slot % kSlots] + 16 * s + 4 * t)
                     : make_float4(0.0F, 0.0F, 0.0F, 0.0F);
        if constexpr (kRanked) {
          if (valid) {
            k[s] = RotatedQuad(
                k[s], 16 * s + 4 * t,
                chunk.rotations + int64_t{chunk.ranks[slot]} * chunk.rotary_dim,
                chunk.rotary_dim);
          }
        }
      }
      for (int32_t j = 0; j < chunk.group; ++j) {
        float sum = 0.0F;
        for (int s = 0; s < kSteps; ++s) {
          const float4 q = Load(chunk.queries + j * kDim + 16 * s + 4 * t);
          sum = fmaf(q.x, k[s].x, sum);
          sum = fmaf(q.y, k[s].y, sum);
          sum = fmaf(q.z, k[s].z, sum);
          sum = fmaf(q.w, k[s].w, sum);
        }
        sum += __shfl_xor_sync(kAllLanes, sum, 1);
        sum += __shfl_xor_sync(kAllLanes, sum, 2);
        if (t == 0 && valid) {
          logits[j * kLogitStride + slot] = sum * chunk.scale;
        }
      }
    }
  }

  template <typename Emit>
  static __device__ void WeightedSums(const View& chunk,
                                      T* shared,
                                      const float* weights,
                                      const Emit& emit) {
    const auto thread = static_cast<int32_t>(threadIdx.x);
    const int32_t lane = thread / kQuads;
    const int32_t channel = thread % kQuads * 4;
    if (lane < kLanes) {
      float4 sum[kGroup];
      for (int j = 0; j < kGroup; ++j) {
        sum[j] = make_float4(0.0F, 0.0F, 0.0F, 0.0F);
      }
      for (int32_t slot = lane; slot < chunk.slots; slot += kLanes) {
        const float4 v =
            Load(chunk.Block(slot / kSlots)->v[slot % kSlots] + channel);
        for (int j = 0; j < kGroup; ++j) {
          if (j >= chunk.group) continue;
          const float p = weights[j * kLogitStride + slot];
          sum[j].x = fmaf(p, v.x, sum[j].x);
          sum[j].y = fmaf(p, v.y, sum[j].y);
          sum[j].z = fmaf(p, v.z, sum[j].z);
          sum[j].w = fmaf(p, v.w, sum[j].w);
        }
      }
      for (int j = 0; j < kGroup; ++j) {
        if (j >= chunk.group) continue;
        *reinterpret_cast<float4*>(shared + (lane * kGroup + j) * kDim +
                                   channel) = sum[j];
      }
    }
    __syncthreads();
    for (int32_t i = thread; i < chunk.group * kDim; i += kSplitThreads) {
      float sum = 0.0F;
      for (int32_t l = 0; l < kLanes; ++l) {
        sum += shared[l * kGroup * kDim + i];
      }
      emit(i / kDim, i % kDim, sum);
    }
  }
};

}  // namespace kf::cuda
