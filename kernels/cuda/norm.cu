#include <cmath>

#include "kernels/core/status.h"
#include "kernels/cuda/block_reduce.cuh"
#include "kernels/cuda/gpu.h"
#include "kernels/cuda/norm.h"

namespace kf::cuda {
namespace {

constexpr int kMaxThreads = 256;

// The elements of one row that this thread owns: threadIdx.x, and every
// blockDim.x-th from there.
struct Row {
  const float* y;  // x, or where x + add has been written
  const float* weight;
  const float* bias;
  float* out;
  int64_t width;
};

// A thread reads back only what it wrote itself.
__device__ __forceinline__ Row AddedRow(const NormArgs& args) {
  const int64_t start = int64_t{blockIdx.x} * args.width;
  Row row{args.x + start, args.weight, args.bias, args.out + start, args.width};
  if (args.add != nullptr) {
    float* sum = args.sum + start;
    const float* add = args.add + start;
    for (int64_t i = threadIdx.x; i < args.width; i += blockDim.x) {
      sum[i] = row.y[i] + add[i];
    }
    row.y = sum;
  }
  return row;
}

// 1 / sqrt(square + eps); NaN where the row held NaN or infinity.
__device__ __forceinline__ double InverseRoot(double square, float eps) {
  if (!(square < static_cast<double>(INFINITY))) {
    return static_cast<double>(NAN);
  }
  return 1.0 / sqrt(square + static_cast<double>(eps));
}

__global__ void __launch_bounds__(kMaxThreads) RmsNormKernel(NormArgs args) {
  KF_GPU_SHARED(double[kWarp], scratch);
  const Row row = AddedRow(args);
  double squares = 0.0;
  for (int64_t i = threadIdx.x; i < row.width; i += blockDim.x) {
    const auto y = static_cast<double>(row.y[i]);
    squares += y * y;
  }
  squares = BlockSum(squares, scratch);
  const double scale =
      InverseRoot(squares / static_cast<double>(row.width), args.eps);
  for (int64_t i = threadIdx.x; i < row.width; i += blockDim.x) {
    row.out[i] = static_cast<float>(static_cast<double>(row.y[i]) * scale *
                                    static_cast<double>(row.weight[i]));
  }
}

__global__ void __launch_bounds__(kMaxThreads) LayerNormKernel(NormArgs args) {
  KF_GPU_SHARED(double[kWarp], scratch);
  const Row row = AddedRow(args);
  const auto width = static_cast<double>(row.width);
  double sum = 0.0;
  for (int64_t i = threadIdx.x; i < row.width; i += blockDim.x) {
    sum += static_cast<double>(row.y[i]);
  }
  const double mean = BlockSum(sum, scratch) / width;
  double squares = 0.0;
  for (int64_t i = threadIdx.x; i < row.width; i += blockDim.x) {
    const double y = static_cast<double>(row.y[i]) - mean;
    squares += y * y;
  }
  squares = BlockSum(squares, scratch);
  const double scale = InverseRoot(squares / width, args.eps);
  for (int64_t i = threadIdx.x; i < row.width; i += blockDim.x) {
    const double y = (static_cast<double>(row.y[i]) - mean) * scale *
                     static_cast<double>(row.weight[i]);
    const double shift =
        row.bias == nullptr ? 0.0 : static_cast<double>(row.bias[i]);
    row.out[i] = static_cast<float>(y + shift);
  }
}

void Launch(gpu::Stream stream,
            const NormArgs& args,
            void (*kernel)(NormArgs)) {
  if (args.rows == 0) return;
  KF_CHECK(args.width >= 1 && (args.add == nullptr) == (args.sum == nullptr));
  // By the width alone: the order of the sums follows from it.
  const int64_t warps = (args.width + kWarp - 1) / kWarp;
  const int64_t threads = std::min<int64_t>(warps * kWarp, kMaxThreads);
  gpu::launch(stream, static_cast<unsigned>(args.rows),
              static_cast<unsigned>(threads), 0, kernel, args);
}

}  // namespace

void RmsNorm(gpu::Stream stream, const NormArgs& args) {
  KF_CHECK(args.bias == nullptr);
  Launch(stream, args, RmsNormKernel);
}

void LayerNorm(gpu::Stream stream, const NormArgs& args) {
  Launch(stream, args, LayerNormKernel);
}

}  // namespace kf::cuda
