#include <cmath>

#include "kernels/cuda/activation.h"
#include "kernels/cuda/gpu.h"

namespace kf::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kPerThread = 4;  // values, kThreads apart
constexpr int64_t kPerBlock = kThreads * kPerThread;

unsigned BlocksFor(int64_t count) {
  return static_cast<unsigned>((count + kPerBlock - 1) / kPerBlock);
}

// Block (row, part of the row).
__global__ void __launch_bounds__(kThreads)
    SwiGluKernel(const float* x, int64_t width, float* out) {
  const float* gate = x + int64_t{blockIdx.x} * 2 * width;
  const float* up = gate + width;
  float* y = out + int64_t{blockIdx.x} * width;
  const int64_t first = int64_t{blockIdx.y} * kPerBlock + threadIdx.x;
  for (int k = 0; k < kPerThread; ++k) {
    const int64_t i = first + k * kThreads;
    if (i >= width) return;
    const float g = gate[i];
    y[i] = g / (1.0F + expf(-g)) * up[i];
  }
}

template <GeluKind kKind>
__device__ __forceinline__ float GeluOf(float x) {
  if constexpr (kKind == GeluKind::kErf) {
    return 0.5F * x * (1.0F + erff(x * 0.70710678F));
  } else {
    const float cubic = x + 0.044715F * x * x * x;
    return 0.5F * x * (1.0F + tanhf(0.79788456F * cubic));
  }
}

template <GeluKind kKind>
__global__ void __launch_bounds__(kThreads)
    GeluKernel(const float* x, int64_t count, float* out) {
  const int64_t first = int64_t{blockIdx.x} * kPerBlock + threadIdx.x;
  for (int k = 0; k < kPerThread; ++k) {
    const int64_t i = first + k * kThreads;
    if (i >= count) return;
    out[i] = GeluOf<kKind>(x[i]);
  }
}

}  // namespace

void SwiGlu(gpu::Stream stream,
            const float* x,
            int64_t rows,
            int64_t width,
            float* out) {
  if (rows == 0) return;
  gpu::launch(stream, dim3(static_cast<unsigned>(rows), BlocksFor(width)),
              kThreads, 0, SwiGluKernel, x, width, out);
}

void Gelu(gpu::Stream stream,
          GeluKind kind,
          const float* x,
          int64_t count,
          float* out) {
  if (count == 0) return;
  gpu::launch(stream, BlocksFor(count), kThreads, 0,
              kind == GeluKind::kErf ? GeluKernel<GeluKind::kErf>
                                     : GeluKernel<GeluKind::kTanh>,
              x, count, out);
}

}  // namespace kf::cuda
