#include "kernels/core/aligned.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>

#include "kernels/core/status.h"

namespace kf {
namespace {

constexpr size_t kHugePageBytes = size_t{2} << 20;

size_t PhysicalBytes() {
  const auto pages = static_cast<size_t>(sysconf(_SC_PHYS_PAGES));
  return pages * static_cast<size_t>(sysconf(_SC_PAGESIZE));
}

}  // namespace

absl::StatusOr<AlignedBytes> AlignedBytes::Allocate(size_t bytes,
                                                    std::string_view what) {
  // Checked here since the system promises more than it has and kills later.
  if (const size_t physical = PhysicalBytes(); bytes > physical) {
    return absl::ResourceExhaustedError(
        absl::StrCat(ToAbsl(what), ": ", bytes,
                     " bytes wanted, the machine has ", physical));
  }
  const bool huge = bytes >= kHugePageBytes;
  const size_t alignment = huge ? kHugePageBytes : kCacheLineBytes;
  const size_t rounded = RoundUp(std::max<size_t>(bytes, 1), alignment);
  void* data = std::aligned_alloc(alignment, rounded);
  if (data == nullptr) {
    return absl::ResourceExhaustedError(absl::StrCat(
        ToAbsl(what), ": the system refused ", bytes, " bytes of memory"));
  }
  // Advice alone: a system without huge pages is only slower.
  if (huge) (void)madvise(data, rounded, MADV_HUGEPAGE);
  return AlignedBytes(static_cast<std::byte*>(data), bytes);
}

AlignedBytes::~AlignedBytes() { std::free(data_); }

}  // namespace kf
