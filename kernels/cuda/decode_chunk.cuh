// Device code: what a block knows of its chunk of a (row, kv head).
#pragma once

#include <cstdint>

#include "kernels/cuda/decode_attention.h"
#include "kernels/cuda/gpu.h"
#include "kernels/cuda/page_access.cuh"

namespace kf::cuda {

inline constexpr int kSplitThreads = 128;
inline constexpr int kSplitWarps = kSplitThreads / 32;
inline constexpr int kGroup = 8;  // query heads of a block, at most
inline constexpr int32_t kChunkPages = kDecodeChunk / kSlots;
// Floats from one query head's logits to the next: neighbours lie four banks
// apart, so that the eight rows of a fragment meet in none.
inline constexpr int32_t kLogitStride = kDecodeChunk + 4;

template <typename T, int kDim>
struct Chunk {
  PageList list;  // its first page comes first
  int32_t kv_heads;
  int32_t head;
  int32_t slots;     // 1 .. kDecodeChunk
  int32_t group;     // 1 .. kGroup
  const T* queries;  // [group][kDim], rotated, padded with zeros
  float scale;       // 1 / sqrt(d)
  // Rows with rank_positions:
  const int32_t* ranks;    // [slots]
  const float* rotations;  // [ranks][rotary_dim]
  int32_t rotary_dim;

  const __device__ HeadBlock<T, kDim>* Block(int32_t page) const {
    return BlockAt<T, kDim>(list, kv_heads, head, page);
  }
};

}  // namespace kf::cuda
