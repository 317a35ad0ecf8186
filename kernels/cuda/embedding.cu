#include "kernels/cuda/embedding.h"
#include "kernels/cuda/gpu.h"

namespace kf::cuda {
namespace {

constexpr int kThreads = 128;

// Block i gathers row i.
template <typename T>
__global__ void __launch_bounds__(kThreads)
    EmbedKernel(const T* table, const int32_t* ids, int64_t width, float* out) {
  const T* from = table + int64_t{ids[blockIdx.x]} * width;
  float* to = out + int64_t{blockIdx.x} * width;
  for (int64_t i = threadIdx.x; i < width; i += kThreads) {
    to[i] = gpu::to_float(from[i]);
  }
}

template <typename T>
void Launch(gpu::Stream stream,
            const T* table,
            const int32_t* ids,
            int64_t rows,
            int64_t width,
            float* out) {
  if (rows == 0) return;
  gpu::launch(stream, static_cast<unsigned>(rows), kThreads, 0, EmbedKernel<T>,
              table, ids, width, out);
}

}  // namespace

void Embed(gpu::Stream stream,
           const float* table,
           const int32_t* ids,
           int64_t rows,
           int64_t width,
           float* out) {
  Launch(stream, table, ids, rows, width, out);
}

void Embed(gpu::Stream stream,
           const Bf16* table,
           const int32_t* ids,
           int64_t rows,
           int64_t width,
           float* out) {
  Launch(stream, reinterpret_cast<const gpu::bf16*>(table), ids, rows, width,
         out);
}

}  // namespace kf::cuda
