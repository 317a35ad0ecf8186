// The descriptors of one call, put together in pinned memory and copied to the
// device in one go; and working memory that grows to what calls need.
//
// Thread-compatible: the engine thread's.
#pragma once

#include <array>
#include <cstddef>
#include <cstring>
#include <memory>
#include <span>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/core/status.h"
#include "kernels/cuda/device.h"

namespace kf::cuda {

// Parts of device memory start at multiples of it.
inline constexpr size_t kPartBytes = 256;
constexpr size_t PartBytes(size_t bytes) {
  return (bytes + kPartBytes - 1) / kPartBytes * kPartBytes;
}

template <typename T>
size_t ArrayBytes(size_t count) {
  return PartBytes(count * sizeof(T));
}

// Parts of one piece of memory, one after another.
class Parts {
 public:
  // Where `bytes` more start.
  size_t Take(size_t bytes) {
    const size_t at = bytes_;
    bytes_ += PartBytes(bytes);
    return at;
  }
  size_t bytes() const { return bytes_; }

 private:
  size_t bytes_ = 0;
};

// Whether a copy is over: out of host memory that is to be written again, or
// into host memory that is to be read.
class CopyFence {
 public:
  CopyFence() = default;
  ~CopyFence();
  CopyFence(const CopyFence&) = delete;
  CopyFence& operator=(const CopyFence&) = delete;

  // Until the copy before the last Mark is over. To be called before Mark.
  absl::Status Wait();
  // After a copy in `stream`.
  absl::Status Mark(cudaStream_t stream);

 private:
  cudaEvent_t copied_ = nullptr;
  bool in_flight_ = false;
};

// Begin, Add each part, Send; then launch. The host goes on while the device
// works: a few slots are filled in turn, and Begin waits only where the copy of
// the call that had its slot before is not over.
class Staging {
 public:
  explicit Staging(const Device& device) : device_(device) {}
  Staging(const Staging&) = delete;
  Staging& operator=(const Staging&) = delete;

  // Room for calls of so many bytes, before any has begun.
  absl::Status Reserve(size_t bytes);

  // `bytes`: at least the sum of PartBytes of what will be added.
  absl::Status Begin(size_t bytes);

  // Copies `values` in; returns where they will be on the device. T is plain.
  template <typename T>
  T* Add(std::span<const T> values) {
    return reinterpret_cast<T*>(
        AddBytes({reinterpret_cast<const std::byte*>(values.data()),
                  values.size_bytes()}));
  }

  absl::Status Send();

 private:
  struct Slot {
    std::unique_ptr<PinnedBuffer> host;
    std::unique_ptr<DeviceBuffer> device;
    CopyFence fence;
  };

  std::byte* AddBytes(std::span<const std::byte> bytes);
  absl::Status SetRoom(Slot& slot, size_t bytes);

  const Device& device_;
  std::array<Slot, 8> slots_;
  size_t current_ = 0;
  size_t used_ = 0;
};

// The same, always at one place of the device, until more room is asked for:
// for launches that are captured. What is sent is taken by those after it.
class FixedStaging {
 public:
  explicit FixedStaging(const Device& device) : device_(device) {}
  FixedStaging(const FixedStaging&) = delete;
  FixedStaging& operator=(const FixedStaging&) = delete;

  // Room for steps of so many bytes; what was sent is gone.
  absl::Status Reserve(size_t bytes);

  // Where the host may write `bytes`. Afterwards device() is where they go.
  absl::StatusOr<std::byte*> Begin(size_t bytes);
  std::byte* device() { return buffer_->data(); }
  absl::Status Send(size_t bytes);

 private:
  struct Slot {
    std::unique_ptr<PinnedBuffer> host;
    CopyFence fence;
  };

  const Device& device_;
  std::unique_ptr<DeviceBuffer> buffer_;
  std::array<Slot, 2> slots_;
  size_t current_ = 0;
};

// Contents live until the next call that asks.
class Workspace {
 public:
  explicit Workspace(const Device& device) : device_(device) {}

  // Device memory, 256-byte aligned.
  absl::StatusOr<unsigned char*> Get(size_t bytes);
  // The same, but where it grows by half more than is needed: its address is
  // part of captured launches, which are made anew when it moves.
  absl::StatusOr<unsigned char*> GetWithRoom(size_t bytes);

 private:
  const Device& device_;
  std::unique_ptr<DeviceBuffer> buffer_;
};

}  // namespace kf::cuda
