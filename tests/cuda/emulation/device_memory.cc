// Device memory of the builds without the checker: AddressSanitizer, if it is
// there, knows each allocation by itself; a wide redzone behind it catches an
// overrun by a tile, not only by an element.
#include <cstdlib>
#include <cstring>
#include <new>

#include "tests/cuda/emulation/sanitizers.h"
#include "tests/cuda/emulation/shadow.h"

namespace kf::emu {
namespace {

constexpr size_t kTailBytes = 4096;

}  // namespace

void* ShadowAllocate(size_t bytes) {
  void* p = nullptr;
  if (posix_memalign(&p, 256, bytes + kTailBytes) != 0) throw std::bad_alloc();
  std::memset(p, 0xff, bytes + kTailBytes);
  ForbidAccess(static_cast<char*>(p) + bytes, kTailBytes);
  return p;
}

void ShadowFree(void* p, size_t bytes) {
  AllowAccess(static_cast<char*>(p) + bytes, kTailBytes);
  std::free(p);
}

}  // namespace kf::emu
