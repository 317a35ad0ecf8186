// What comes before a decode step's attention: the tokens go into their slots,
// and, with rank_positions, every held token finds its rank.
#include "kernels/cuda/block_reduce.cuh"
#include "kernels/cuda/decode_attention.h"
#include "kernels/cuda/decode_row.cuh"
#include "kernels/cuda/gpu.h"
#include "kernels/cuda/page_access.cuh"
#include "kernels/cuda/rotary.cuh"
#include "kernels/cuda/warp.cuh"

namespace kf::cuda {
namespace {

constexpr int kRankThreads = 256;
constexpr int kRankWarps = kRankThreads / 32;
// Ranks are counted in a bit map of so many positions at a time.
constexpr int32_t kWindowWords = 2048;
constexpr int32_t kWindow = kWindowWords * 32;
constexpr int32_t kWordsEach = kWindowWords / kRankThreads;
constexpr int kTableThreads = 128;

// A block appends a row.
template <typename T>
__global__ void __launch_bounds__(kAppendThreads)
    DecodeAppendKernel(DecodeWork work) {
  KF_GPU_SHARED(float2[kMaxPairs], table);
  const DecodeShape& shape = work.shape;
  const int64_t row = blockIdx.x;
  const DecodeItem& item = work.items[row];
  if (item.slots == 0) return;
  AppendToken token;
  token.qkv = work.qkv + row * (shape.query_heads + 2 * shape.layout.kv_heads) *
                             shape.layout.head_dim;
  token.queries = Words<T>(work, work.plan.queries) +
                  row * shape.query_heads * shape.layout.padded_dim;
  token.rank = item.rank_positions ? item.held : item.position;
  token.position = item.position;
  token.rotate_keys = !item.rank_positions;
  token.cache = item.cache;
  // The tokens of a run go to slots of their positions.
  if (!item.continues && !item.continued) token.free_slot = item.free_slot;
  Append<T>(
      {shape.layout, shape.query_heads, shape.rotary_dim, work.frequencies},
      token, table);
}

// Block (head, row) counts, for each held token, those at earlier positions.
__global__ void __launch_bounds__(kRankThreads) RankKernel(DecodeWork work) {
  KF_GPU_SHARED(uint32_t[kWindowWords], present);
  KF_GPU_SHARED(int32_t[kWindowWords], before);
  KF_GPU_SHARED(int32_t[kRankWarps], warp_counts);
  const DecodeItem& item = work.items[blockIdx.y];
  if (!item.rank_positions) return;
  const auto head = static_cast<int32_t>(blockIdx.x);
  const auto thread = static_cast<int32_t>(threadIdx.x);
  int32_t* ranks =
      Words<int32_t>(work, item.ranks) + int64_t{head} * item.slots;
  int32_t earlier = 0;  // in the windows before
  for (int32_t base = 0; base <= item.position; base += kWindow) {
    for (int32_t i = thread; i < kWindowWords; i += kRankThreads) {
      present[i] = 0;
    }
    __syncthreads();
    for (int32_t slot = thread; slot < item.slots; slot += kRankThreads) {
      const int32_t at =
          *PositionAt(work.shape.layout, item.cache, head, slot) - base;
      if (at >= 0 && at < kWindow) {
        atomicOr(&present[at / 32], 1U << (at % 32));
      }
    }
    __syncthreads();
    int32_t own = 0;
    for (int32_t i = 0; i < kWordsEach; ++i) {
      own += __popc(present[thread * kWordsEach + i]);
    }
    int32_t count = WarpSumBelow(own, thread % 32);
    if (thread % 32 == 31) warp_counts[thread / 32] = count + own;
    __syncthreads();
    int32_t total = 0;
    for (int32_t warp = 0; warp < kRankWarps; ++warp) {
      if (warp < thread / 32) count += warp_counts[warp];
      total += warp_counts[warp];
    }
    for (int32_t i = 0; i < kWordsEach; ++i) {
      before[thread * kWordsEach + i] = count;
      count += __popc(present[thread * kWordsEach + i]);
    }
    __syncthreads();
    for (int32_t slot = thread; slot < item.slots; slot += kRankThreads) {
      const int32_t at =
          *PositionAt(work.shape.layout, item.cache, head, slot) - base;
      if (at >= 0 && at < kWindow) {
        const uint32_t below = present[at / 32] & ((1U << (at % 32)) - 1);
        ranks[slot] = earlier + before[at / 32] + __popc(below);
      }
    }
    earlier += total;
    __syncthreads();  // the window is read, and may be cleared
  }
}

// A block makes the pairs {cos, sin} of a rank.
__global__ void __launch_bounds__(kTableThreads)
    RankRotationsKernel(DecodeWork work) {
  const int32_t pairs = work.shape.rotary_dim / 2;
  auto* row =
      Words<float2>(work, work.plan.rotations) + int64_t{blockIdx.x} * pairs;
  for (auto i = static_cast<int32_t>(threadIdx.x); i < pairs;
       i += kTableThreads) {
    row[i] = CosSin(static_cast<double>(blockIdx.x) * work.frequencies[i]);
  }
}

}  // namespace

void DecodeAppend(gpu::Stream stream, const DecodeWork& work) {
  gpu::launch(stream, static_cast<unsigned>(work.rows), kAppendThreads, 0,
              work.shape.layout.element_bytes == 4
                  ? DecodeAppendKernel<float>
                  : DecodeAppendKernel<gpu::bf16>,
              work);
}

void DecodeRanks(gpu::Stream stream, const DecodeWork& work) {
  const dim3 heads(static_cast<unsigned>(work.shape.layout.kv_heads),
                   static_cast<unsigned>(work.rows));
  gpu::launch(stream, heads, kRankThreads, 0, RankKernel, work);
  if (work.shape.rotary_dim == 0) return;
  gpu::launch(stream, static_cast<unsigned>(work.plan.ranks), kTableThreads, 0,
              RankRotationsKernel, work);
}

}  // namespace kf::cuda
