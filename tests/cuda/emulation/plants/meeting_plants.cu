// Threads that do not meet where they should: barriers and warp intrinsics.
#include "kernels/cuda/gpu.h"
#include "tests/cuda/device_array.h"
#include "tests/cuda/emulation/plants/plants.h"

namespace kf::emu {
namespace {

using gpu::DeviceArray;
using gpu::kFullWarp;
using gpu::launch;

constexpr int kThreads = 64;

// --- a missing __syncthreads between a write and another thread's read ---
__global__ void Reverse(int* y, bool planted) {
  KF_GPU_SHARED(int[kThreads], a);
  const int t = static_cast<int>(threadIdx.x);
  a[t] = -1;
  __syncthreads();
  a[t] = t;  // fault
  if (!planted) __syncthreads();
  y[t] = a[kThreads - 1 - t];  // fault
}

bool MissingBarrier(bool planted) {
  DeviceArray<int> y(kThreads);
  launch(nullptr, 1, kThreads, 0, Reverse, y.data(), planted);
  return y.Download()[0] == 63;
}

// --- a missing barrier at the end of a loop: a buffer used again too early ---
__global__ void Rounds(int* y, bool planted) {
  KF_GPU_SHARED(int[kThreads], a);
  const int t = static_cast<int>(threadIdx.x);
  int sum = 0;
  for (int round = 0; round < 3; ++round) {
    a[t] = t + round;  // fault
    __syncthreads();
    sum += a[(t + 1) % kThreads];  // fault
    if (!planted) __syncthreads();
  }
  y[t] = sum;
}

bool BufferReuse(bool planted) {
  DeviceArray<int> y(kThreads);
  launch(nullptr, 1, kThreads, 0, Rounds, y.data(), planted);
  return y.Download()[0] == 6 && y.Download()[kThreads - 1] == 3;
}

// --- a barrier that only one warp comes to ---
__global__ void BarrierInBranch(int* y, bool planted) {
  if (!planted || threadIdx.x < 32) {
    __syncthreads();  // fault
  }
  y[threadIdx.x] = 1;
}

bool DivergentBarrier(bool planted) {
  DeviceArray<int> y(kThreads);
  launch(nullptr, 1, kThreads, 0, BarrierInBranch, y.data(), planted);
  return y.Download()[kThreads - 1] == 1;
}

// --- two barriers, in two branches ---
__global__ void TwoBarriers(int* y, bool planted) {
  if (planted && threadIdx.x < 32) {
    __syncthreads();  // fault
  } else {
    __syncthreads();  // fault
  }
  y[threadIdx.x] = 1;
}

bool BarriersInBranches(bool planted) {
  DeviceArray<int> y(kThreads);
  launch(nullptr, 1, kThreads, 0, TwoBarriers, y.data(), planted);
  return y.Download()[0] == 1;
}

// --- a thread that has left before a barrier ---
__global__ void ReturnEarly(int* y, bool planted) {
  if (planted && threadIdx.x == kThreads - 1) return;
  __syncthreads();  // fault
  y[threadIdx.x] = 1;
}

bool EarlyReturn(bool planted) {
  DeviceArray<int> y(std::vector<int>(kThreads, 1));
  launch(nullptr, 1, kThreads, 0, ReturnEarly, y.data(), planted);
  return y.Download()[0] == 1;
}

// --- a ballot of all lanes that some lanes never reach ---
__global__ void BallotInBranch(uint32_t* y, int n, bool planted) {
  const int t = static_cast<int>(threadIdx.x);
  uint32_t votes = 0;
  if (!planted || t < n) {
    votes = __ballot_sync(kFullWarp, t < n);  // fault
  }
  __syncthreads();  // fault
  y[t] = votes;
}

bool DivergentBallot(bool planted) {
  DeviceArray<uint32_t> y(32);
  launch(nullptr, 1, 32, 0, BallotInBranch, y.data(), 20, planted);
  return y.Download()[0] == (1U << 20) - 1;
}

// --- two intrinsics with one mask, in two branches ---
__global__ void ShuffleOrVote(int* y, bool planted) {
  const int t = static_cast<int>(threadIdx.x);
  int v = 0;
  if (planted && t % 2 == 1) {
    v = __any_sync(kFullWarp, 1);  // fault
  } else {
    v = __shfl_xor_sync(kFullWarp, t, 1);  // fault
  }
  y[t] = v;
}

bool DivergentIntrinsics(bool planted) {
  DeviceArray<int> y(32);
  launch(nullptr, 1, 32, 0, ShuffleOrVote, y.data(), planted);
  return y.Download()[4] == 5;
}

// --- a shuffle that reads a lane outside of its mask ---
__global__ void ShuffleOutside(int* y, bool planted) {
  const int t = static_cast<int>(threadIdx.x);
  if (t < 16) {
    y[t] = __shfl_xor_sync(0xFFFFU, t, planted ? 16 : 8);  // fault
  }
}

bool LaneOutsideMask(bool planted) {
  DeviceArray<int> y(32);
  launch(nullptr, 1, 32, 0, ShuffleOutside, y.data(), planted);
  return y.Download()[0] == 8;
}

// --- a missing __syncwarp: lanes do not run in step ---
__global__ void Neighbours(int* y, bool planted) {
  KF_GPU_SHARED(int[32], a);
  const int t = static_cast<int>(threadIdx.x);
  a[t] = -1;
  __syncwarp();
  a[t] = t;  // fault
  if (!planted) __syncwarp();
  y[t] = a[(t + 1) % 32];  // fault
}

bool MissingSyncwarp(bool planted) {
  DeviceArray<int> y(32);
  launch(nullptr, 1, 32, 0, Neighbours, y.data(), planted);
  return y.Download()[0] == 1 && y.Download()[31] == 0;
}

// --- a __syncwarp of half the warp orders nothing for the other half ---
__global__ void HalfSyncwarp(int* y, bool planted) {
  KF_GPU_SHARED(int[32], a);
  const int t = static_cast<int>(threadIdx.x);
  a[t] = -1;
  __syncwarp();
  a[t] = t;  // fault
  if (planted) {
    __syncwarp(t < 16 ? 0x0000FFFFU : 0xFFFF0000U);
  } else {
    __syncwarp();
  }
  y[t] = a[31 - t];  // fault
}

bool PartialSyncwarp(bool planted) {
  DeviceArray<int> y(32);
  launch(nullptr, 1, 32, 0, HalfSyncwarp, y.data(), planted);
  return y.Download()[31] == 0;
}

}  // namespace

std::vector<Plant> MeetingPlants() {
  return {
      {"MissingBarrier", MissingBarrier, kAny, kAny, "race: shared"},
      {"BufferReuse", BufferReuse, kAny, kAny, "race: shared"},
      {"DivergentBarrier", DivergentBarrier, "divergent barrier",
       "divergent barrier", "divergent barrier"},
      {"BarriersInBranches", BarriersInBranches, "divergent barrier",
       "divergent barrier", "divergent barrier"},
      {"EarlyReturn", EarlyReturn, "divergent barrier", "divergent barrier",
       "divergent barrier"},
      {"DivergentBallot", DivergentBallot,
       "deadlock.* 20 at __ballot_sync .* 12 at __syncthreads",
       "deadlock.* 20 at __ballot_sync .* 12 at __syncthreads",
       "deadlock.* 20 at __ballot_sync .* 12 at __syncthreads"},
      {"DivergentIntrinsics", DivergentIntrinsics, "divergent warp",
       "divergent warp", "divergent warp"},
      {"LaneOutsideMask", LaneOutsideMask, "divergent warp", "divergent warp",
       "divergent warp"},
      {"MissingSyncwarp", MissingSyncwarp, kWrong, kWrong, "race: shared"},
      {"PartialSyncwarp", PartialSyncwarp, kAny, kAny, "race: shared"},
  };
}

}  // namespace kf::emu
