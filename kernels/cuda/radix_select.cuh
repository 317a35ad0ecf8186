// Device code: which of n values are among the `count` largest, found by a
// block.
//
// Four passes of eight bits over 32-bit keys narrow down the key of the last
// one that is chosen; one more pass writes the indices of those above it and of
// the first of its equals. Counts are of integers, so the result does not
// depend on an order.
#pragma once

#include <cstdint>

#include "kernels/cuda/gpu.h"
#include "kernels/cuda/warp.cuh"

namespace kf::cuda {

// Where the selection stands: the leading bits of the last key that is chosen,
// and how many of those that share them are.
struct RadixState {
  uint32_t prefix;
  int32_t wanted;
};

// One warp: lane i owns buckets 255 - 8 i down to 248 - 8 i, and the lane in
// whose buckets the count reaches `wanted` moves the state on.
__device__ inline void NarrowPrefix(const int32_t* histogram,
                                    int shift,
                                    int32_t lane,
                                    RadixState* state) {
  const int32_t first = 255 - lane * 8;
  int32_t own = 0;
  for (int j = 0; j < 8; ++j) own += histogram[first - j];
  int32_t count = WarpSumBelow(own, lane);
  const RadixState before = *state;
  __syncwarp();  // all lanes have read the state that one changes
  if (count >= before.wanted || count + own < before.wanted) return;
  for (int j = 0; j < 8; ++j) {
    const int32_t here = histogram[first - j];
    if (count + here >= before.wanted) {
      state->prefix = before.prefix | static_cast<uint32_t>(first - j) << shift;
      state->wanted = before.wanted - count;
      return;
    }
    count += here;
  }
}

// Writes the indices of the `count` largest keys of [0, n), ascending, to
// `chosen`; of equal keys the smaller indices are. 1 <= count <= n. Called by
// all kThreads threads of a block with the same values; key_at(i) is a
// uint32_t, the same each time. Ends with a barrier.
template <int kThreads, typename KeyAt>
__device__ void SelectLargest(int32_t n,
                              int32_t count,
                              const KeyAt& key_at,
                              int32_t* chosen) {
  static_assert(kThreads % 32 == 0 && kThreads >= 256);
  constexpr int kWarps = kThreads / 32;
  KF_GPU_SHARED(int32_t[256], histogram);
  KF_GPU_SHARED(int32_t[kWarps][2], found);
  KF_GPU_SHARED(RadixState, state);
  const auto thread = static_cast<int32_t>(threadIdx.x);
  const int32_t warp = thread / 32;
  const int32_t lane = thread % 32;
  if (thread == 0) state = {0, count};
  for (int shift = 24; shift >= 0; shift -= 8) {
    if (thread < 256) histogram[thread] = 0;
    __syncthreads();
    const uint32_t prefix = state.prefix;
    const uint32_t known = shift == 24 ? 0U : ~0U << (shift + 8);
    for (int32_t i = thread; i < n; i += kThreads) {
      const uint32_t key = key_at(i);
      if ((key & known) == prefix) atomicAdd(&histogram[key >> shift & 255], 1);
    }
    __syncthreads();
    if (warp == 0) NarrowPrefix(histogram, shift, lane, &state);
    __syncthreads();
  }
  const uint32_t last = state.prefix;
  const int32_t ties = state.wanted;
  int32_t above_before = 0;
  int32_t ties_before = 0;
  for (int32_t first = 0; first < n; first += kThreads) {
    const int32_t i = first + thread;
    const uint32_t key = i < n ? key_at(i) : 0;
    const bool above = i < n && key > last;
    const bool tie = i < n && key == last;
    const uint32_t above_lanes = __ballot_sync(kAllLanes, above);
    const uint32_t tie_lanes = __ballot_sync(kAllLanes, tie);
    if (lane == 0) {
      found[warp][0] = __popc(above_lanes);
      found[warp][1] = __popc(tie_lanes);
    }
    __syncthreads();
    const uint32_t below = (1U << lane) - 1;
    int32_t above_rank = above_before + __popc(above_lanes & below);
    int32_t tie_rank = ties_before + __popc(tie_lanes & below);
    for (int w = 0; w < kWarps; ++w) {
      if (w < warp) {
        above_rank += found[w][0];
        tie_rank += found[w][1];
      }
      above_before += found[w][0];
      ties_before += found[w][1];
    }
    if (above || (tie && tie_rank < ties)) {
      chosen[above_rank + (tie_rank < ties ? tie_rank : ties)] = i;
    }
    __syncthreads();  // `found` is read, and may be written again
  }
}

}  // namespace kf::cuda
