#include "kernels/cuda/device.h"

#include <algorithm>

#include "kernels/core/status.h"

namespace kf::cuda {
namespace {

// The first with the instructions that our kernels use (bf16 mma, cp.async).
constexpr int kLeastMajor = 8;

std::string TextOf(cudaError_t error) {
  return absl::StrCat(cudaGetErrorName(error), ": ", cudaGetErrorString(error));
}

absl::Status OutOfMemory(const Device& device,
                         size_t bytes,
                         std::string_view what,
                         std::string_view call,
                         cudaError_t error) {
  cudaGetLastError();  // taken: the next call is not to answer for it
  std::string room;
  if (const auto memory = device.Memory(); memory.ok()) {
    room = absl::StrCat(", of which ", memory->free, " of ", memory->total,
                        " bytes are free");
  }
  return absl::ResourceExhaustedError(
      absl::StrCat(ToAbsl(what), ": cannot allocate ", bytes, " bytes on ",
                   device.description(), room, " (", ToAbsl(call), ": ",
                   TextOf(error), ")"));
}

}  // namespace

absl::Status ToStatus(cudaError_t error, std::string_view call) {
  if (error == cudaSuccess) return absl::OkStatus();
  cudaGetLastError();
  return absl::InternalError(absl::StrCat(ToAbsl(call), ": ", TextOf(error)));
}

absl::Status CheckDevice(int index) {
  int count = 0;
  const cudaError_t error = cudaGetDeviceCount(&count);
  if (error != cudaSuccess) {
    cudaGetLastError();
    return absl::UnavailableError(
        absl::StrCat("no usable CUDA driver (libcuda.so.1): ", TextOf(error)));
  }
  if (index >= count) {
    return absl::UnavailableError(
        absl::StrCat("no CUDA device ", index, ": there are ", count));
  }
  int major = 0;
  KF_RETURN_IF_ERROR(ToStatus(
      cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, index),
      "cudaDeviceGetAttribute"));
  if (major < kLeastMajor) {
    return absl::UnavailableError(
        absl::StrCat("CUDA device ", index, " has compute capability ", major,
                     ".x, want at least ", kLeastMajor, ".0"));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<Device>> Device::Open(int index) {
  KF_RETURN_IF_ERROR(CheckDevice(index));
  std::unique_ptr<Device> device(new Device(index));
  KF_RETURN_IF_ERROR(device->Use());
  cudaDeviceProp properties;
  KF_RETURN_IF_ERROR(ToStatus(cudaGetDeviceProperties(&properties, index),
                              "cudaGetDeviceProperties"));
  device->description_ = absl::StrCat(properties.name, ", sm_",
                                      properties.major, properties.minor);
  KF_RETURN_IF_ERROR(ToStatus(
      cudaStreamCreateWithFlags(&device->stream_, cudaStreamNonBlocking),
      "cudaStreamCreateWithFlags"));
  return device;
}

Device::~Device() {
  if (stream_ != nullptr) cudaStreamDestroy(stream_);
}

absl::Status Device::Use() const {
  thread_local int current = -1;
  if (current == index_) return absl::OkStatus();
  KF_RETURN_IF_ERROR(ToStatus(cudaSetDevice(index_), "cudaSetDevice"));
  current = index_;
  return absl::OkStatus();
}

absl::StatusOr<DeviceMemory> Device::Memory() const {
  KF_RETURN_IF_ERROR(Use());
  size_t free = 0;
  size_t total = 0;
  KF_RETURN_IF_ERROR(ToStatus(cudaMemGetInfo(&free, &total), "cudaMemGetInfo"));
  return DeviceMemory{.total = total, .free = free};
}

absl::Status Device::Wait() const {
  KF_RETURN_IF_ERROR(
      ToStatus(cudaStreamSynchronize(stream_), "cudaStreamSynchronize"));
  return ToStatus(cudaGetLastError(), "a kernel");
}

absl::StatusOr<std::unique_ptr<DeviceBuffer>> DeviceBuffer::Allocate(
    const Device& device, size_t bytes, std::string_view what) {
  KF_RETURN_IF_ERROR(device.Use());
  void* data = nullptr;
  const cudaError_t error = cudaMalloc(&data, std::max<size_t>(bytes, 1));
  if (error != cudaSuccess) {
    return OutOfMemory(device, bytes, what, "cudaMalloc", error);
  }
  return std::unique_ptr<DeviceBuffer>(
      new DeviceBuffer(static_cast<std::byte*>(data), bytes));
}

DeviceBuffer::~DeviceBuffer() { cudaFree(data_); }

absl::StatusOr<std::unique_ptr<PinnedBuffer>> PinnedBuffer::Allocate(
    const Device& device, size_t bytes, std::string_view what) {
  KF_RETURN_IF_ERROR(device.Use());
  void* data = nullptr;
  const cudaError_t error = cudaMallocHost(&data, std::max<size_t>(bytes, 1));
  if (error != cudaSuccess) {
    return OutOfMemory(device, bytes, what, "cudaMallocHost", error);
  }
  return std::unique_ptr<PinnedBuffer>(
      new PinnedBuffer(static_cast<std::byte*>(data), bytes));
}

PinnedBuffer::~PinnedBuffer() { cudaFreeHost(data_); }

}  // namespace kf::cuda
