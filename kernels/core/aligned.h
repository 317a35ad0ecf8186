// Memory for kernels: aligned to a cache line and, from 2 MiB up, to a huge
// page, which the system is then asked to use.
#pragma once

#include <cstddef>
#include <string_view>
#include <utility>

#include "absl/status/statusor.h"

namespace kf {

inline constexpr size_t kCacheLineBytes = 64;

constexpr size_t RoundUp(size_t value, size_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

// Owns a block of memory. Contents are undefined at first. Movable.
class AlignedBytes {
 public:
  // kResourceExhausted names `what` and the size: more than the machine's
  // physical memory, or refused by the system. Zero bytes are fine.
  static absl::StatusOr<AlignedBytes> Allocate(size_t bytes,
                                               std::string_view what);

  AlignedBytes() = default;
  ~AlignedBytes();
  AlignedBytes(AlignedBytes&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)),
        bytes_(std::exchange(other.bytes_, 0)) {}
  AlignedBytes& operator=(AlignedBytes&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(bytes_, other.bytes_);
    return *this;
  }

  std::byte* data() const { return data_; }
  size_t bytes() const { return bytes_; }

 private:
  AlignedBytes(std::byte* data, size_t bytes) : data_(data), bytes_(bytes) {}

  std::byte* data_ = nullptr;
  size_t bytes_ = 0;
};

}  // namespace kf
