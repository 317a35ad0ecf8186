#include "kernels/cpu/scratch.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "kernels/core/status.h"

namespace kf::cpu {
namespace {

#if defined(__SANITIZE_ADDRESS__)
constexpr bool kSpoil = true;  // what is read unset shows: -1, or NaN
#else
constexpr bool kSpoil = false;
#endif

}  // namespace

void ScratchArena::Reset() {
  used_ = 0;
  // Several blocks mean that the last operation outgrew the arena: next time
  // one block of the total size serves it.
  if (blocks_.size() > 1) blocks_.clear();
}

absl::StatusOr<std::byte*> ScratchArena::TakeBytes(size_t bytes) {
  if (bytes > SIZE_MAX / 4) {
    return absl::ResourceExhaustedError(
        absl::StrCat("scratch memory: ", bytes, " bytes wanted"));
  }
  const size_t rounded = RoundUp(bytes, kCacheLineBytes);
  if (blocks_.empty() || blocks_.back().bytes() - used_ < rounded) {
    const bool first = blocks_.empty();
    KF_ASSIGN_OR_RETURN(
        AlignedBytes block,
        AlignedBytes::Allocate(first ? std::max(rounded, capacity_)
                                     : std::max(rounded, capacity_ / 2),
                               "scratch memory"));
    capacity_ = (first ? 0 : capacity_) + block.bytes();
    blocks_.push_back(std::move(block));
    used_ = 0;
  }
  std::byte* piece = blocks_.back().data() + used_;
  used_ += rounded;
  if (kSpoil) std::memset(piece, 0xFF, rounded);
  return piece;
}

}  // namespace kf::cpu
