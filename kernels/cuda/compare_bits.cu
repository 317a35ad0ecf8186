#include "kernels/cuda/compare_bits.h"
#include "kernels/cuda/gpu.h"

namespace kf::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kPerThread = 8;  // words, kThreads apart
constexpr int64_t kPerBlock = kThreads * kPerThread;

__global__ void __launch_bounds__(kThreads) CompareBitsKernel(
    const float* a, const float* b, int64_t count, uint32_t* differing) {
  const int64_t first = int64_t{blockIdx.x} * kPerBlock + threadIdx.x;
  uint32_t different = 0;
  for (int k = 0; k < kPerThread; ++k) {
    const int64_t i = first + k * kThreads;
    if (i >= count) break;
    different += __float_as_uint(a[i]) != __float_as_uint(b[i]) ? 1 : 0;
  }
  if (different != 0) atomicAdd(differing, different);
}

}  // namespace

void CompareBits(gpu::Stream stream,
                 const float* a,
                 const float* b,
                 int64_t count,
                 uint32_t* differing) {
  if (count == 0) return;
  const auto blocks =
      static_cast<unsigned>((count + kPerBlock - 1) / kPerBlock);
  gpu::launch(stream, blocks, kThreads, 0, CompareBitsKernel, a, b, count,
              differing);
}

}  // namespace kf::cuda
