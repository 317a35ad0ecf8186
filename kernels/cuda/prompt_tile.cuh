// Tiles of 64 queries, keys or values in shared memory, for tensor cores.
// Device code, bf16.
#pragma once

#include <cstdint>

#include "kernels/cuda/gpu.h"
#include "kernels/cuda/prompt_device.cuh"

namespace kf::cuda {

inline constexpr int kTile = 64;          // rows, and keys
inline constexpr int kTileThreads = 128;  // a warp owns 16 rows
inline constexpr int kTileKeyGroups = kTile / 8;
static_assert(kTile % kSlots == 0);

// A row takes one 16-byte chunk more than it holds: an odd number of chunks, so
// that the eight rows that ldmatrix reads at once lie in different banks.
template <int kDim>
struct HeadTile {
  gpu::bf16 at[kTile][kDim + 8];
};

// Starts the copy of rows [first, first + kTile), row(i) being a pointer to
// kDim values; rows outside [begin, end) are 0.
template <int kDim, typename Row>
__device__ __forceinline__ void LoadTile(HeadTile<kDim>& tile,
                                         int32_t first,
                                         int32_t begin,
                                         int32_t end,
                                         const gpu::bf16* somewhere,
                                         const Row& row) {
  constexpr int kChunks = kDim / 8;
  for (int i = static_cast<int>(threadIdx.x); i < kTile * kChunks;
       i += kTileThreads) {
    const int32_t r = first + i / kChunks;
    const int c = i % kChunks * 8;
    const bool ok = r >= begin && r < end;
    gpu::cp_async16(&tile.at[i / kChunks][c], ok ? row(r) + c : somewhere, ok);
  }
}

// Queries of the item's rows at `first`; rows of no slice are 0.
template <int kDim>
__device__ __forceinline__ void LoadQueries(HeadTile<kDim>& tile,
                                            const PromptArgs& args,
                                            const PromptItem& item,
                                            int32_t query_head,
                                            int32_t first) {
  const auto* queries = reinterpret_cast<const gpu::bf16*>(args.queries);
  LoadTile(tile, first, item.first_row, item.first_row + item.rows, queries,
           [&](int32_t row) {
             const int64_t at = item.batch_row + row - item.first_row;
             return queries + (at * args.query_heads + query_head) * kDim;
           });
}

template <int kDim>
__device__ __forceinline__ void LoadKeys(HeadTile<kDim>& tile,
                                         const PromptArgs& args,
                                         const PromptItem& item,
                                         const KeyRows<gpu::bf16, kDim>& rows,
                                         int32_t first) {
  LoadTile(tile, first, 0, item.first_row + item.rows,
           reinterpret_cast<const gpu::bf16*>(args.queries),
           [&](int32_t position) { return rows.Key(position); });
}

// dot[j] += this warp's 16 rows times keys [8 j, 8 j + 8), as mma_16816 lays
// them out: lane 4 g + t has rows g (elements 0, 1) and g + 8 (2, 3), keys 8 j
// + 2 t and the next.
template <int kDim>
__device__ __forceinline__ void DotTile(float (&dot)[kTileKeyGroups][4],
                                        const HeadTile<kDim>& queries,
                                        const HeadTile<kDim>& keys) {
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll
  for (int c = 0; c < kDim; c += 16) {
    uint32_t q[4];
    gpu::ldmatrix_x4(q, &queries.at[16 * warp + lane % 16][c + lane / 16 * 8]);
#pragma unroll
    for (int j = 0; j < kTileKeyGroups; j += 2) {
      uint32_t k[4];
      gpu::ldmatrix_x4(
          k, &keys.at[8 * j + lane / 16 * 8 + lane % 8][c + lane / 8 % 2 * 8]);
      gpu::mma_16816(dot[j], q, k[0], k[1]);
      gpu::mma_16816(dot[j + 1], q, k[2], k[3]);
    }
  }
}

// Logits of DotTile's products: the scale, and ALiBi where there is a slope.
// row0: of elements 0 and 1; first_key: of element 0 of x[0].
__device__ __forceinline__ void LogitTile(float (&x)[kTileKeyGroups][4],
                                          const PromptHead& head,
                                          int32_t row0,
                                          int32_t first_key) {
#pragma unroll
  for (int j = 0; j < kTileKeyGroups; ++j) {
#pragma unroll
    for (int c = 0; c < 4; ++c) x[j][c] = __fmul_rn(x[j][c], head.scale);
  }
  if (head.slope == 0.0F) return;
#pragma unroll
  for (int j = 0; j < kTileKeyGroups; ++j) {
#pragma unroll
    for (int c = 0; c < 4; ++c) {
      const int32_t distance = row0 + c / 2 * 8 - (first_key + 8 * j + c % 2);
      x[j][c] = fmaf(-head.slope, static_cast<float>(distance), x[j][c]);
    }
  }
}

}  // namespace kf::cuda
