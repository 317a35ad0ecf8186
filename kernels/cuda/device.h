// A CUDA device, its stream and its memory: the run time's errors as statuses
// that name the call.
//
// Thread-compatible: the engine thread's, after the thread that made it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/backend.h"
#include "kernels/cuda/gpu_api.h"

namespace kf::cuda {

// OK, or kInternal: "cudaMemcpyAsync: cudaErrorIllegalAddress: an illegal
// memory access was encountered".
absl::Status ToStatus(cudaError_t error, std::string_view call);

// Whether device `index` can serve. kUnavailable says what is missing: the
// driver, a device, or compute capability 8.0.
absl::Status CheckDevice(int index);

class Device {
 public:
  // kUnavailable as CheckDevice. Its one stream is made here.
  static absl::StatusOr<std::unique_ptr<Device>> Open(int index);
  ~Device();
  Device(const Device&) = delete;
  Device& operator=(const Device&) = delete;

  gpu::Stream stream() const { return stream_; }
  // "NVIDIA H200, sm_90".
  const std::string& description() const { return description_; }

  // Makes this the calling thread's device; cheap when it is.
  absl::Status Use() const;
  // Bytes of the device's memory, in all and free now.
  absl::StatusOr<DeviceMemory> Memory() const;
  // Waits until all that was given to the stream is done.
  absl::Status Wait() const;

 private:
  explicit Device(int index) : index_(index) {}

  const int index_;
  gpu::Stream stream_ = nullptr;
  std::string description_;
};

// Device memory, 256-byte aligned.
class DeviceBuffer final : public Buffer {
 public:
  // kResourceExhausted names `what`, its size, and what is free.
  static absl::StatusOr<std::unique_ptr<DeviceBuffer>> Allocate(
      const Device& device, size_t bytes, std::string_view what);
  ~DeviceBuffer() override;
  DeviceBuffer(const DeviceBuffer&) = delete;
  DeviceBuffer& operator=(const DeviceBuffer&) = delete;

  std::byte* data() override { return data_; }
  size_t bytes() const override { return bytes_; }

 private:
  DeviceBuffer(std::byte* data, size_t bytes) : data_(data), bytes_(bytes) {}

  std::byte* data_;
  size_t bytes_;
};

// Page-locked host memory, which the device copies from and to by itself.
class PinnedBuffer {
 public:
  static absl::StatusOr<std::unique_ptr<PinnedBuffer>> Allocate(
      const Device& device, size_t bytes, std::string_view what);
  ~PinnedBuffer();
  PinnedBuffer(const PinnedBuffer&) = delete;
  PinnedBuffer& operator=(const PinnedBuffer&) = delete;

  std::byte* data() { return data_; }
  size_t bytes() const { return bytes_; }

 private:
  PinnedBuffer(std::byte* data, size_t bytes) : data_(data), bytes_(bytes) {}

  std::byte* data_;
  size_t bytes_;
};

}  // namespace kf::cuda
