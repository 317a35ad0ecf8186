// Device memory of the builds without the checker: AddressSanitizer, if it is
// there, knows each allocation by itself.
#include <cstdlib>
#include <cstring>
#include <new>

#include "tests/cuda/emulation/shadow.h"

namespace kf::emu {

void* ShadowAllocate(size_t bytes) {
  void* p = nullptr;
  if (posix_memalign(&p, 256, bytes) != 0) throw std::bad_alloc();
  std::memset(p, 0xff, bytes);
  return p;
}

void ShadowFree(void* p, size_t /*bytes*/) { std::free(p); }

}  // namespace kf::emu
