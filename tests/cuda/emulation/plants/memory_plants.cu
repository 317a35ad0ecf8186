// Wrong addresses, unset memory, and races between blocks. Lines that a report
// may name are marked `fault`.
#include <cmath>
#include <numeric>

#include "kernels/cuda/gpu.h"
#include "tests/cuda/device_array.h"
#include "tests/cuda/emulation/plants/plants.h"

namespace kf::emu {
namespace {

using gpu::DeviceArray;
using gpu::launch;

constexpr int kThreads = 64;

std::vector<float> Ramp(size_t count) {
  std::vector<float> values(count);
  std::iota(values.begin(), values.end(), 1.0F);
  return values;
}

// --- out of bounds, global ---
__global__ void SumTail(const float* x, float* y, int n, bool planted) {
  const int t = static_cast<int>(threadIdx.x);
  float sum = 0.0F;
  for (int i = t; i < n + (planted ? 1 : 0); i += kThreads) {
    sum += x[i];  // fault
  }
  y[t] = sum;
}

bool GlobalOverrun(bool planted) {
  const DeviceArray<float> x(Ramp(100));
  DeviceArray<float> y(kThreads);
  launch(nullptr, 1, kThreads, 0, SumTail, x.data(), y.data(), 100, planted);
  return y.Download()[36] == 37.0F;
}

// --- use after free ---
__global__ void CopyOne(const float* x, float* y) {
  y[0] = x[0];  // fault
}

bool FreedMemory(bool planted) {
  DeviceArray<float> y(1);
  auto* x = new DeviceArray<float>(Ramp(1));
  const float* address = x->data();
  if (planted) delete x;
  launch(nullptr, 1, 1, 0, CopyOne, address, y.data());
  const bool right = y.Download()[0] == 1.0F;
  if (!planted) delete x;
  return right;
}

// --- out of bounds, shared: a static array overrun by one element ---
__global__ void ShiftStatic(float* y, bool planted) {
  KF_GPU_SHARED(float[kThreads], a);
  KF_GPU_SHARED(float[kThreads], b);
  const int t = static_cast<int>(threadIdx.x);
  b[t] = 2.0F;
  // A pointer, as kernels pass rows around: its bounds are not in its type.
  float* row = a;
  __syncthreads();
  row[planted ? t + 1 : t] = 1.0F;  // fault
  __syncthreads();
  y[t] = a[t] + b[t];
}

bool SharedOverrun(bool planted) {
  DeviceArray<float> y(kThreads);
  launch(nullptr, 1, kThreads, 0, ShiftStatic, y.data(), planted);
  return y.Download()[0] == 3.0F;
}

// --- dynamic shared memory smaller than what is used ---
__global__ void UseDynamic(float* y) {
  float* a = gpu::dyn_smem<float>();
  const int t = static_cast<int>(threadIdx.x);
  a[t] = static_cast<float>(t);  // fault
  __syncthreads();
  y[t] = a[kThreads - 1 - t];
}

bool DynamicTooSmall(bool planted) {
  DeviceArray<float> y(kThreads);
  const size_t bytes = kThreads * sizeof(float);
  launch(nullptr, 1, kThreads, planted ? bytes / 2 : bytes, UseDynamic,
         y.data());
  return y.Download()[0] == 63.0F;
}

// --- unset shared memory: a histogram that nobody zeroed ---
__global__ void Histogram(const int* x, int* y, bool planted) {
  KF_GPU_SHARED(int[8], counts);
  const int t = static_cast<int>(threadIdx.x);
  if (!planted && t < 8) counts[t] = 0;
  __syncthreads();
  atomicAdd(&counts[x[t]], 1);  // fault
  __syncthreads();
  if (t < 8) y[t] = counts[t];
}

bool UnsetShared(bool planted) {
  std::vector<int> x(kThreads);
  for (size_t i = 0; i < x.size(); ++i) x[i] = static_cast<int>(i % 8);
  const DeviceArray<int> in(x);
  DeviceArray<int> y(8);
  launch(nullptr, 1, kThreads, 0, Histogram, in.data(), y.data(), planted);
  return y.Download() == std::vector<int>(8, kThreads / 8);
}

// --- unset device memory ---
__global__ void Double(const float* x, float* y) {
  y[threadIdx.x] = 2.0F * x[threadIdx.x];  // fault
}

bool UnsetGlobal(bool planted) {
  DeviceArray<float> x(kThreads);
  x.Upload(Ramp(planted ? kThreads - 1 : kThreads));
  DeviceArray<float> y(kThreads);
  launch(nullptr, 1, kThreads, 0, Double, x.data(), y.data());
  return y.Download()[kThreads - 1] == 128.0F;
}

// --- unset device memory, copied first: named where it is used ---
__global__ void CopyWide(const float* x, float* y) {
  gpu::copy16(y + 4 * threadIdx.x, x + 4 * threadIdx.x);
}

bool UnsetCopied(bool planted) {
  // Never set: the last float of all. Copying it is right.
  DeviceArray<float> x(kThreads);
  x.Upload(Ramp(kThreads - 1));
  DeviceArray<float> copy(kThreads);
  DeviceArray<float> y(kThreads);
  const int used = planted ? kThreads : kThreads - 1;
  launch(nullptr, 1, kThreads / 4, 0, CopyWide, x.data(), copy.data());
  launch(nullptr, 1, used, 0, Double, copy.data(), y.data());
  return y.Download()[static_cast<size_t>(used) - 1] ==
         2.0F * static_cast<float>(used);
}

// --- a copy races as a load and a store do ---
__global__ void CopyFromNeighbour(float* x, bool planted) {
  const unsigned from = planted ? (threadIdx.x + 1) % kThreads : threadIdx.x;
  gpu::copy16(x + 4 * threadIdx.x, x + 4 * from);  // fault
}

bool CopyRace(bool planted) {
  DeviceArray<float> x(Ramp(4 * kThreads));
  launch(nullptr, 1, kThreads, 0, CopyFromNeighbour, x.data(), planted);
  return x.Download()[0] == 1.0F;
}

// --- a 16-byte load from where only 4 bytes align ---
__global__ void LoadWide(const float* x, float* y, bool planted) {
  const float* row = x + 4 * threadIdx.x + (planted ? 1 : 0);
  const uint4 v = *reinterpret_cast<const uint4*>(row);  // fault
  y[threadIdx.x] = __uint_as_float(v.x);
}

bool Misaligned(bool planted) {
  const DeviceArray<float> x(Ramp(4 * kThreads + 4));
  DeviceArray<float> y(kThreads);
  launch(nullptr, 1, kThreads, 0, LoadWide, x.data(), y.data(), planted);
  return y.Download()[1] == 5.0F;
}

// --- a host pointer inside an argument struct ---
struct Arguments {
  const float* x;
  float* y;
};

__global__ void CopyStruct(Arguments a) {
  a.y[threadIdx.x] = a.x[threadIdx.x];  // fault
}

bool HostPointer(bool planted) {
  const std::vector<float> host = Ramp(kThreads);
  const DeviceArray<float> x(host);
  DeviceArray<float> y(kThreads);
  launch(nullptr, 1, kThreads, 0, CopyStruct,
         Arguments{planted ? host.data() : x.data(), y.data()});
  return y.Download() == host;
}

// --- a pointer to another thread's local memory ---
__global__ void ShareLocal(float* y, bool planted) {
  KF_GPU_SHARED(const float*, shared_pointer);
  KF_GPU_SHARED(float, shared_value);
  const float mine = static_cast<float>(threadIdx.x) + 5.0F;
  if (threadIdx.x == 0) {
    shared_pointer = &mine;
    shared_value = mine;
  }
  __syncthreads();
  y[threadIdx.x] = planted ? *shared_pointer : shared_value;  // fault
  __syncthreads();
}

bool LocalOfAnother(bool planted) {
  DeviceArray<float> y(kThreads);
  launch(nullptr, 1, kThreads, 0, ShareLocal, y.data(), planted);
  return y.Download()[9] == 5.0F;
}

// --- two blocks add to one word without an atomic ---
__global__ void CountBlocks(int* count, bool planted) {
  if (threadIdx.x != 0) return;
  if (planted) {
    *count += 1;  // fault
  } else {
    atomicAdd(count, 1);
  }
}

bool PlainAddBetweenBlocks(bool planted) {
  DeviceArray<int> count(std::vector<int>{0});
  launch(nullptr, 4, 32, 0, CountBlocks, count.data(), planted);
  return count.Download()[0] == 4;
}

// --- a block reads what another one of its launch writes ---
__global__ void PassOn(int* slots, int* y, bool planted) {
  const unsigned b = blockIdx.x;
  slots[b] = 7;
  y[b] = slots[planted ? 0 : b];  // fault
}

bool ReadOfAnotherBlock(bool planted) {
  DeviceArray<int> slots(std::vector<int>(4, 0));
  DeviceArray<int> y(4);
  launch(nullptr, 4, 1, 0, PassOn, slots.data(), y.data(), planted);
  return y.Download()[0] == 7;
}

// --- a read past the length, inside one pool: no address is wrong ---
__global__ void SumLength(const float* pool, float* y, int n) {
  float sum = 0.0F;
  for (int i = 0; i < n; ++i) sum += pool[i];
  y[0] = sum;
}

// The slots beyond the length hold NaN that somebody set, as our tests fill
// pages that a sequence does not own.
bool BeyondLength(bool planted) {
  std::vector<float> values(16, NAN);
  std::fill(values.begin(), values.begin() + 10, 1.0F);
  const DeviceArray<float> pool(values);
  DeviceArray<float> y(1);
  launch(nullptr, 1, 1, 0, SumLength, pool.data(), y.data(), planted ? 11 : 10);
  return y.Download()[0] == 10.0F;
}

}  // namespace

std::vector<Plant> MemoryPlants() {
  return {
      {"GlobalOverrun", GlobalOverrun, kAny, "use-after-poison",
       "out of bounds: global read"},
      {"FreedMemory", FreedMemory, kAny, "heap-use-after-free",
       "out of bounds: global read"},
      {"SharedOverrun", SharedOverrun, kAny, "use-after-poison",
       "out of bounds: shared write"},
      {"DynamicTooSmall", DynamicTooSmall, kAny, "use-after-poison",
       "out of bounds: shared write"},
      {"UnsetShared", UnsetShared, kWrong, kWrong, "unset read"},
      {"UnsetGlobal", UnsetGlobal, kWrong, kWrong, "unset read"},
      {"UnsetCopied", UnsetCopied, kWrong, kWrong, "unset read"},
      {"CopyRace", CopyRace, kAny, kAny, "race: global (read|write)"},
      {"Misaligned", Misaligned, kAny, "misaligned", "misaligned"},
      {"HostPointer", HostPointer, kAny, kAny, "host pointer: read"},
      {"LocalOfAnother", LocalOfAnother, kAny, kAny,
       "host pointer: read of another thread"},
      {"PlainAddBetweenBlocks", PlainAddBetweenBlocks, kAny, kAny,
       "race: global .*another block"},
      {"ReadOfAnotherBlock", ReadOfAnotherBlock, kAny, kAny,
       "race: global read .*written by another block"},
      {"BeyondLength", BeyondLength, kWrong, kWrong, kWrong},
  };
}

}  // namespace kf::emu
