// Device code: who leaves, found by a block.
#pragma once

#include <cstdint>

#include "kernels/cuda/block_reduce.cuh"
#include "kernels/cuda/gpu.h"
#include "kernels/cuda/score.cuh"

namespace kf::cuda {

// The candidate with the lowest rank, ties to the latest position: the one with
// the smallest key. No two candidates are at one position.
struct Victim {
  uint64_t key = ~uint64_t{0};
  int32_t slot = -1;
};

__device__ inline Victim MakeVictim(float rank,
                                    int32_t position,
                                    int32_t slot) {
  Victim v;
  v.key = uint64_t{RankBits(rank)} << 32 | ~static_cast<uint32_t>(position);
  v.slot = slot;
  return v;
}

__device__ inline Victim WorseOf(const Victim& a, const Victim& b) {
  return b.key < a.key ? b : a;
}

// The slot of the worst of all threads', in thread 0; -1 where nobody has a
// candidate. Called by all kThreads threads of a block.
template <int kThreads>
__device__ int32_t WorstOfBlock(Victim own) {
  constexpr int kWarps = kThreads / kWarp;
  KF_GPU_SHARED(Victim[kWarps], worst);
  for (int distance = kWarp / 2; distance > 0; distance /= 2) {
    Victim other;
    other.key = __shfl_xor_sync(kAllLanes, own.key, distance);
    other.slot = __shfl_xor_sync(kAllLanes, own.slot, distance);
    own = WorseOf(own, other);
  }
  if (threadIdx.x % kWarp == 0) worst[threadIdx.x / kWarp] = own;
  __syncthreads();
  for (int w = 0; w < kWarps; ++w) own = WorseOf(own, worst[w]);
  return own.slot;
}

}  // namespace kf::cuda
