// One kernel, right as it stands, and two regressions of the kind that the
// static gates are there for: a 16-byte load that has become sixteen, and more
// live values than registers.
#include "kernels/cuda/gpu.h"

namespace kf::cuda {

#if defined(KF_PLANT_SPILL)
constexpr int kThreads = 1024;  // leaves 64 registers a thread
constexpr int kValues = 192;
#else
constexpr int kThreads = 128;
constexpr int kValues = 4;
#endif

__global__ void __launch_bounds__(kThreads)
    GatedKernel(const unsigned char* x, float* y, int rounds) {
  KF_GPU_SHARED(float[kThreads], part);
  const int t = static_cast<int>(threadIdx.x);
  float values[kValues];
  for (int i = 0; i < kValues; i += 4) {
    uint4 v;
#if defined(KF_PLANT_NARROW)
    memcpy(&v, x + (i * kThreads + t) * 16, sizeof v);
#else
    v = *reinterpret_cast<const uint4*>(x + (i * kThreads + t) * 16);
#endif
    values[i] = __uint_as_float(v.x);
    values[i + 1] = __uint_as_float(v.y);
    values[i + 2] = __uint_as_float(v.z);
    values[i + 3] = __uint_as_float(v.w);
  }
  for (int r = 0; r < rounds; ++r) {
    part[t] = values[0];
    __syncthreads();
#pragma unroll
    for (int i = 0; i < kValues; ++i) {
      values[i] = fmaf(values[(i + 1) % kValues], part[i % 32], values[i]);
    }
    __syncthreads();
  }
#pragma unroll
  for (int i = 0; i < kValues; ++i) y[i * kThreads + t] = values[i];
}

}  // namespace kf::cuda
