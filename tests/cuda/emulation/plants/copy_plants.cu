// Faults of cp.async pipelines and of tensor core tiles.
#include <numeric>

#include "kernels/cuda/gpu.h"
#include "tests/cuda/device_array.h"
#include "tests/cuda/emulation/plants/plants.h"

namespace kf::emu {
namespace {

using gpu::DeviceArray;
using gpu::launch;

constexpr int kThreads = 32;
constexpr int kTiles = 4;
constexpr int kTileFloats = 4 * kThreads;  // 16 bytes a thread

enum class Fault { kNone, kWaitTooWeak, kNoBarrier, kNoWait, kTail };

// Sums tiles through a ring of two: the neighbour's 16 bytes of each.
__global__ void Ring(const float* x, float* y, Fault fault) {
  KF_GPU_SHARED(float[2][kTileFloats], ring);
  const int t = static_cast<int>(threadIdx.x);
  auto load = [&](int tile) {
    if (tile < kTiles || fault == Fault::kTail) {
      const float* from = x + tile * kTileFloats + 4 * t;
      gpu::cp_async16(&ring[tile % 2][4 * t], from, true);  // fault
    }
    gpu::cp_async_commit();
  };
  load(0);
  float sum = 0.0F;
  for (int tile = 0; tile < kTiles; ++tile) {
    load(tile + 1);
    if (fault == Fault::kWaitTooWeak) {
      gpu::cp_async_wait<2>();
    } else {
      gpu::cp_async_wait<1>();
    }
    __syncthreads();
    sum += ring[tile % 2][4 * ((t + 1) % kThreads)];  // fault
    if (fault != Fault::kNoBarrier) __syncthreads();
  }
  if (fault != Fault::kNoWait) gpu::cp_async_wait<0>();
  y[t] = sum;
}

bool RunRing(Fault fault) {
  std::vector<float> values(kTiles * kTileFloats);
  std::iota(values.begin(), values.end(), 0.0F);
  const DeviceArray<float> x(values);
  DeviceArray<float> y(kThreads);
  launch(nullptr, 1, kThreads, 0, Ring, x.data(), y.data(), fault);
  return y.Download()[0] == 4.0F * 4.0F + 128.0F * (0 + 1 + 2 + 3);
}

bool WaitTooWeak(bool planted) {
  return RunRing(planted ? Fault::kWaitTooWeak : Fault::kNone);
}
bool RingWithoutBarrier(bool planted) {
  return RunRing(planted ? Fault::kNoBarrier : Fault::kNone);
}
bool CopyPastEnd(bool planted) {
  return RunRing(planted ? Fault::kTail : Fault::kNone);
}

// --- a thread that leaves while its copy is on the way ---
__global__ void LeaveEarly(const float* x, float* y, bool planted) {
  KF_GPU_SHARED(float[kTileFloats], tile);
  const int t = static_cast<int>(threadIdx.x);
  gpu::cp_async16(&tile[4 * t], x + 4 * t, true);  // fault
  gpu::cp_async_commit();
  if (!planted) gpu::cp_async_wait<0>();
  y[t] = 1.0F;
}

bool UnfinishedCopy(bool planted) {
  const DeviceArray<float> x(std::vector<float>(kTileFloats, 1.0F));
  DeviceArray<float> y(kThreads);
  launch(nullptr, 1, kThreads, 0, LeaveEarly, x.data(), y.data(), planted);
  return y.Download()[0] == 1.0F;
}

// --- cp.async from an address that is not 16-byte aligned ---
__global__ void CopyOff(const float* x, float* y, bool planted) {
  KF_GPU_SHARED(float[kTileFloats], tile);
  const int t = static_cast<int>(threadIdx.x);
  const float* from = x + 4 * t + (planted ? 1 : 0);
  gpu::cp_async16(&tile[4 * t], from, true);  // fault
  gpu::cp_async_commit();
  gpu::cp_async_wait<0>();
  y[t] = tile[4 * t];
}

bool MisalignedCopy(bool planted) {
  const DeviceArray<float> x(std::vector<float>(kTileFloats + 4, 1.0F));
  DeviceArray<float> y(kThreads);
  launch(nullptr, 1, kThreads, 0, CopyOff, x.data(), y.data(), planted);
  return y.Download()[0] == 1.0F;
}

// --- two registers of an A fragment swapped ---
__global__ void Multiply(const float* a, float* c, bool planted) {
  const int lane = static_cast<int>(threadIdx.x);
  const int g = lane / 4;
  const int t = 2 * (lane % 4);
  auto two = [&](int row, int column) {
    return gpu::pack_bf16(a[row * 16 + column], a[row * 16 + column + 1]);
  };
  uint32_t fa[4] = {two(g, t), two(g + 8, t), two(g, t + 8), two(g + 8, t + 8)};
  if (planted) {
    const uint32_t swap = fa[1];
    fa[1] = fa[2];
    fa[2] = swap;
  }
  // B: the first 8 columns of the identity, so that C is A's left half.
  auto one = [&](int row) {
    return gpu::pack_bf16(row == g ? 1.0F : 0.0F, row + 1 == g ? 1.0F : 0.0F);
  };
  float sum[4] = {};
  gpu::mma_16816(sum, fa, one(t), one(t + 8));
  for (int i = 0; i < 4; ++i) {
    c[(g + 8 * (i / 2)) * 8 + t + i % 2] = sum[i];
  }
}

bool SwappedFragments(bool planted) {
  std::vector<float> a(256);
  std::iota(a.begin(), a.end(), 0.0F);
  const DeviceArray<float> in(a);
  DeviceArray<float> out(128);
  launch(nullptr, 1, 32, 0, Multiply, in.data(), out.data(), planted);
  const std::vector<float> c = out.Download();
  for (size_t i = 0; i < c.size(); ++i) {
    if (c[i] != a[i / 8 * 16 + i % 8]) return false;
  }
  return true;
}

}  // namespace

std::vector<Plant> CopyPlants() {
  return {
      {"WaitTooWeak", WaitTooWeak, kWrong, kWrong, "unset read: .* in flight"},
      {"RingWithoutBarrier", RingWithoutBarrier, kAny, kAny, "race: shared"},
      {"CopyPastEnd", CopyPastEnd, kAny, "use-after-poison",
       "out of bounds: global read"},
      {"UnfinishedCopy", UnfinishedCopy, "unfinished copy", "unfinished copy",
       "unfinished copy"},
      {"MisalignedCopy", MisalignedCopy, "misaligned cp.async",
       "misaligned cp.async", "misaligned cp.async"},
      {"SwappedFragments", SwappedFragments, kWrong, kWrong, kWrong},
  };
}

}  // namespace kf::emu
