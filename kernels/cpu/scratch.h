// Working memory of one operation at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/core/aligned.h"

namespace kf::cpu {

// Hands out 64-byte aligned pieces of a block that only grows: once an
// operation of the largest size has run, nothing is allocated any more.
//
//   scratch.Reset();  // at the start of each operation
//   KF_ASSIGN_OR_RETURN(float* logits, scratch.Take<float>(rows * keys));
//
// Used by the engine thread alone; the pieces may be used by all threads of a
// region.
class ScratchArena {
 public:
  // Everything taken before is void.
  void Reset();

  // Contents are undefined. kResourceExhausted if the system has no memory.
  template <typename T>
  absl::StatusOr<T*> Take(int64_t count) {
    absl::StatusOr<std::byte*> bytes =
        TakeBytes(static_cast<size_t>(count) * sizeof(T));
    if (!bytes.ok()) return bytes.status();
    return reinterpret_cast<T*>(*bytes);
  }
  absl::StatusOr<std::byte*> TakeBytes(size_t bytes);

  // Bytes held.
  size_t capacity() const { return capacity_; }

 private:
  std::vector<AlignedBytes> blocks_;  // the last one is being filled
  size_t used_ = 0;                   // of the last block
  size_t capacity_ = 0;               // of all blocks
};

}  // namespace kf::cpu
