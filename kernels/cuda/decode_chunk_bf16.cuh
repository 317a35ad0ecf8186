// Device code: the two products of a chunk on tensor cores, for a bf16 cache.
//
// A page is a tile: 16 keys. q . k multiplies [16 queries, of which at most 8
// are real] by [channels, 8 keys]; its result is the very fragment that P^T V
// wants for P, but both stay apart, since the softmax of a chunk comes between.
// A sum over channels may take them in any order, so each lane reads 16 bytes
// of a key's row and uses them as they lie; K never sees shared memory. V does,
// copied while K is read, since its product sums over keys, which lie in
// different rows: ldmatrix transposes.
//
// P is multiplied as the sum of two bf16 numbers, so that the result is as good
// as with P in f32 (2^-16 relative): the tensor cores idle here anyway.
#pragma once

#include <cstdint>

#include "kernels/cuda/decode_chunk.cuh"
#include "kernels/cuda/gpu.h"
#include "kernels/cuda/rotary.cuh"

namespace kf::cuda {

template <int kDim>
struct ChunkBf16 {
  using T = gpu::bf16;
  using View = Chunk<T, kDim>;

  // Elements from a row of V to the next: eight rows of 16 bytes lie in
  // different banks.
  static constexpr int32_t kValueStride = kDim + 8;
  static constexpr size_t kSharedBytes = kDecodeChunk * kValueStride * 2;

  // Channels by 32, a uint4 a lane; then by 16, a uint2.
  static constexpr int kSteps = kDim / 32;
  static constexpr bool kHasHalf = kDim % 32 != 0;

  // A lane's part of a row: registers of two channels, zero where there is no
  // row.
  struct Row {
    uint4 step[kSteps == 0 ? 1 : kSteps];
    uint2 half;
  };

  static __device__ Row LoadRow(const T* row, bool valid, int32_t t) {
    Row r;
    for (int s = 0; s < kSteps; ++s) {
      r.step[s] = valid ? *reinterpret_cast<const uint4*>(row + 32 * s + 8 * t)
                        : make_uint4(0, 0, 0, 0);
    }
    if constexpr (kHasHalf) {
      r.half = valid
                   ? *reinterpret_cast<const uint2*>(row + 32 * kSteps + 4 * t)
                   : make_uint2(0, 0);
    }
    return r;
  }

  // Rotates two channels that start at `channel`, and rounds them again.
  static __device__ uint32_t Rotated(uint32_t pair,
                                     int32_t channel,
                                     const float* rotation,
                                     int32_t rotary_dim) {
    if (channel >= rotary_dim) return pair;
    const float2 x =
        RotatePair(make_float2(gpu::bf16_low(pair), gpu::bf16_high(pair)),
                   *reinterpret_cast<const float2*>(rotation + channel));
    return gpu::pack_bf16(x.x, x.y);
  }

  static __device__ void RotateRow(Row& r,
                                   int32_t t,
                                   const float* rotation,
                                   int32_t rotary_dim) {
    for (int s = 0; s < kSteps; ++s) {
      const int32_t first = 32 * s + 8 * t;
      uint4& x = r.step[s];
      x.x = Rotated(x.x, first, rotation, rotary_dim);
      x.y = Rotated(x.y, first + 2, rotation, rotary_dim);
      x.z = Rotated(x.z, first + 4, rotation, rotary_dim);
      x.w = Rotated(x.w, first + 6, rotation, rotary_dim);
    }
    if constexpr (kHasHalf) {
      const int32_t first = 32 * kSteps + 4 * t;
      r.half.x = Rotated(r.half.x, first, rotation, rotary_dim);
      r.half.y = Rotated(r.half.y, first + 2, rotation, rotary_dim);
    }
  }

  // Starts to copy V to shared memory; zero beyond the slots, so that what lies
  // there, NaN too, adds nothing.
  static __device__ void StartValues(const View& chunk, T* values) {
    constexpr int kUnits = kDim / 8;  // of a row, 16 bytes
    for (auto i = static_cast<int32_t>(threadIdx.x); i < kDecodeChunk * kUnits;
         i += kSplitThreads) {
      const int32_t slot = i / kUnits;
      const int32_t unit = i % kUnits;
      const bool valid = slot < chunk.slots;
      const auto* block = chunk.Block(valid ? slot / kSlots : 0);
      gpu::cp_async16(values + slot * kValueStride + unit * 8,
                      block->v[slot % kSlots] + unit * 8, valid);
    }
    gpu::cp_async_commit();
  }

  // logits[j][slot] = q . k / sqrt(d), of the slots of live pages.
  template <bool kRanked>
  static __device__ void Logits(const View& chunk, float* logits) {
    const auto warp = static_cast<int32_t>(threadIdx.x / 32);
    const auto lane = static_cast<int32_t>(threadIdx.x % 32);
    const int32_t g = lane / 4;  // the query, and the key of eight
    const int32_t t = lane % 4;
    const Row q = LoadRow(chunk.queries + g * kDim, g < chunk.group, t);
    for (int32_t page = warp; page * kSlots < chunk.slots;
         page += kSplitWarps) {
      const auto* block = chunk.Block(page);
      const int32_t slot = page * kSlots + g;
      Row low = LoadRow(block->k[g], slot < chunk.slots, t);
      Row high = LoadRow(block->k[g + 8], slot + 8 < chunk.slots, t);
      if constexpr (kRanked) {
        if (slot < chunk.slots) {
          RotateRow(
              low, t,
              chunk.rotations + int64_t{chunk.ranks[slot]} * chunk.rotary_dim,
              chunk.rotary_dim);
        }
        if (slot + 8 < chunk.slots) {
          RotateRow(high, t,
                    chunk.rotations +
                        int64_t{chunk.ranks[slot + 8]} * chunk.rotary_dim,
                    chunk.rotary_dim);
        }
      }
      float low_sum[4] = {};
      float high_sum[4] = {};
      for (int s = 0; s < kSteps; ++s) {
        const uint32_t a[4] = {q.step[s].x, 0, q.step[s].y, 0};
        gpu::mma_16816(low_sum, a, low.step[s].x, low.step[s].y);
        gpu::mma_16816(high_sum, a, high.step[s].x, high.step[s].y);
        const uint32_t b[4] = {q.step[s].z, 0, q.step[s].w, 0};
        gpu::mma_16816(low_sum, b, low.step[s].z, low.step[s].w);
        gpu::mma_16816(high_sum, b, high.step[s].z, high.step[s].w);
      }
      if constexpr (kHasHalf) {
        const uint32_t a[4] = {q.half.x, 0, q.half.y, 0};
        gpu::mma_16816(low_sum, a, low.half.x, low.half.y);
        gpu::mma_16816(high_sum, a, high.half.x, high.half.y);
      }
      if (g < chunk.group) {
        float* to = logits + g * kLogitStride + page * kSlots + 2 * t;
        *reinterpret_cast<float2*>(to) =
            make_float2(low_sum[0] * chunk.scale, low_sum[1] * chunk.scale);
        *reinterpret_cast<float2*>(to + 8) =
            make_float2(high_sum[0] * chunk.scale, high_sum[1] * chunk.scale);
      }
    }
  }

  // Two weights, each the sum of a bf16 in `high` and one in `low`.
  static __device__ void SplitWeights(const float* weights,
                                      bool valid,
                                      uint32_t& high,
                                      uint32_t& low) {
    const float2 p = valid ? *reinterpret_cast<const float2*>(weights)
                           : make_float2(0.0F, 0.0F);
    high = gpu::pack_bf16(p.x, p.y);
    low = gpu::pack_bf16(p.x - gpu::bf16_low(high), p.y - gpu::bf16_high(high));
  }

  // emit(j, channel, sum over slots of weights[j][slot] V[slot][channel]). The
  // warps share the channels out, so no sum is cut.
  template <typename Emit>
  static __device__ void WeightedSums(const View& chunk,
                                      const T* values,
                                      const float* weights,
                                      const Emit& emit) {
    const auto warp = static_cast<int32_t>(threadIdx.x / 32);
    const auto lane = static_cast<int32_t>(threadIdx.x % 32);
    const int32_t g = lane / 4;
    const int32_t t = lane % 4;
    // Matrices of 8 keys x 8 channels: 0 and 1 side by side, 2 and 3 below.
    const T* own_row =
        values + (lane % 8 + lane / 16 * 8) * kValueStride + lane / 8 % 2 * 8;
    const int32_t pages = PagesFor(chunk.slots);
    for (int32_t tile = warp; tile < kDim / 16; tile += kSplitWarps) {
      float sum[4] = {};
      for (int32_t page = 0; page < pages; ++page) {
        uint32_t v[4];
        gpu::ldmatrix_x4_trans(
            v, own_row + page * kSlots * kValueStride + tile * 16);
        const float* p = weights + g * kLogitStride + page * kSlots + 2 * t;
        uint32_t high[2];
        uint32_t low[2];
        SplitWeights(p, g < chunk.group, high[0], low[0]);
        SplitWeights(p + 8, g < chunk.group, high[1], low[1]);
        gpu::mma_16816(sum, v, high[0], high[1]);
        gpu::mma_16816(sum, v, low[0], low[1]);
      }
      const int32_t channel = tile * 16 + g;
      if (2 * t < chunk.group) {
        emit(2 * t, channel, sum[0]);
        emit(2 * t, channel + 8, sum[2]);
      }
      if (2 * t + 1 < chunk.group) {
        emit(2 * t + 1, channel, sum[1]);
        emit(2 * t + 1, channel + 8, sum[3]);
      }
    }
  }
};

}  // namespace kf::cuda
