#include "kernels/cuda/gpu_api.h"

namespace kf::gpu {

std::string TakeError() {
  cudaDeviceSynchronize();
  const cudaError_t error = cudaGetLastError();
  if (error == cudaSuccess) return {};
  return std::string(cudaGetErrorName(error)) + ": " +
         cudaGetErrorString(error);
}

}  // namespace kf::gpu
