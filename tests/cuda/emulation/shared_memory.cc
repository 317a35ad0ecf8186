// Shared memory, cp.async and atomics. Shared memory is one arena a block,
// filled with 0xff (NaN) before it runs, with redzones between its arrays:
// gcc's AddressSanitizer finds no overrun in static or thread_local stand-ins.
#include <cstring>

#include "tests/cuda/emulation/block.h"
#include "tests/cuda/emulation/sanitizers.h"
#include "tests/cuda/emulation/shadow.h"

namespace kf::emu {
namespace {

bool Aligned(const void* p, size_t to) {
  return reinterpret_cast<uintptr_t>(p) % to == 0;
}

void OpenArray(Block& b, const void* key, char* address, size_t bytes) {
  b.arrays.push_back({key, address, bytes});
  b.shared_used += bytes;
  b.shared_top =
      static_cast<size_t>(address - b.shared) + bytes + kRedzoneBytes;
  AllowAccess(address, bytes);
}

template <typename T>
T RmwChecked(T* p, T (*f)(T, T), T value, void* pc) {
  if (!Aligned(p, sizeof(T))) {
    Fail("misaligned atomic %p at %s", static_cast<void*>(p),
         DescribePlace(pc));
  }
  ShadowAccess(p, sizeof(T), Access::kAtomic, pc);
  const T old = *p;
  *p = f(old, value);
  return old;
}

template <typename T>
T CasChecked(T* p, T expected, T value, void* pc) {
  if (!Aligned(p, sizeof(T))) {
    Fail("misaligned atomic %p at %s", static_cast<void*>(p),
         DescribePlace(pc));
  }
  ShadowAccess(p, sizeof(T), Access::kAtomic, pc);
  const T old = *p;
  if (old == expected) *p = value;
  return old;
}

}  // namespace

void ResetShared(size_t dynamic_bytes) {
  Block& b = ThisBlock();
  AllowAccess(b.shared, kSharedBytes);
  std::memset(b.shared, 0xff, kSharedBytes);
  ForbidAccess(b.shared, kSharedBytes);
  ShadowForgetShared();
  b.arrays.clear();
  b.shared_used = 0;
  OpenArray(b, nullptr, b.shared, dynamic_bytes);
}

void CloseShared() {
  Block& b = ThisBlock();
  b.arrays.clear();
  AllowAccess(b.shared, kSharedBytes);
}

void* SharedDynamic(size_t align) {
  Block& b = ThisBlock();
  if (!Aligned(b.shared, align)) {
    Fail("dynamic shared memory is aligned to 4096 bytes, %zu asked", align);
  }
  return b.shared;
}

void* SharedStatic(const void* key, size_t bytes, size_t align) {
  Block& b = ThisBlock();
  for (const SharedArray& array : b.arrays) {
    if (array.key == key) return array.address;
  }
  const size_t at = (b.shared_top + align - 1) / align * align;
  if (b.shared_used + bytes > options().shared_limit ||
      at + bytes > kSharedBytes) {
    Fail("block uses %zu bytes of shared memory, limit %zu",
         b.shared_used + bytes, options().shared_limit);
  }
  OpenArray(b, key, b.shared + at, bytes);
  return b.shared + at;
}

void CpAsync(void* to, const void* from, int bytes, int valid, Site site) {
  if (!Aligned(to, static_cast<size_t>(bytes)) ||
      (valid != 0 && !Aligned(from, static_cast<size_t>(bytes)))) {
    Fail("misaligned cp.async %s:%d: from %p to %p, %d bytes", site.file,
         site.line, from, to, bytes);
  }
  void* pc = __builtin_return_address(0);
  if (valid != 0) {
    ShadowAccess(from, static_cast<size_t>(valid), Access::kRead, pc);
  }
  ShadowAccess(to, static_cast<size_t>(bytes), Access::kWrite, pc);
  ShadowUnset(to, static_cast<size_t>(bytes));
  Fiber& f = ThisFiber();
  PendingCopy copy{static_cast<char*>(to), {}, bytes, f.copy_group, site};
  std::memcpy(copy.bytes, from, static_cast<size_t>(valid));
  std::memset(to, 0xff, static_cast<size_t>(bytes));
  f.copies.push_back(copy);
}

void CopyBytes(void* to, const void* from, size_t bytes) {
  void* pc = __builtin_return_address(0);
  if (!Aligned(to, bytes) || !Aligned(from, bytes)) {
    Fail("misaligned: copy of %zu bytes from %p to %p at %s", bytes, from, to,
         DescribePlace(pc));
  }
  ShadowAccess(from, bytes, Access::kCopy, pc);
  ShadowAccess(to, bytes, Access::kWrite, pc);
  ShadowMove(to, from, bytes);
  std::memcpy(to, from, bytes);
}

void CpAsyncCommit() { ++ThisFiber().copy_group; }

void CpAsyncWait(int pending_groups) {
  Fiber& f = ThisFiber();
  size_t done = 0;
  for (; done < f.copies.size() &&
         f.copies[done].group < f.copy_group - pending_groups;
       ++done) {
    const PendingCopy& copy = f.copies[done];
    ShadowAccess(copy.to, static_cast<size_t>(copy.count), Access::kWrite,
                 __builtin_return_address(0));
    std::memcpy(copy.to, copy.bytes, static_cast<size_t>(copy.count));
  }
  f.copies.erase(f.copies.begin(),
                 f.copies.begin() + static_cast<std::ptrdiff_t>(done));
}

uint32_t AtomicRmw(uint32_t* p,
                   uint32_t (*f)(uint32_t old, uint32_t value),
                   uint32_t value) {
  return RmwChecked(p, f, value, __builtin_return_address(0));
}
uint64_t AtomicRmw(uint64_t* p,
                   uint64_t (*f)(uint64_t old, uint64_t value),
                   uint64_t value) {
  return RmwChecked(p, f, value, __builtin_return_address(0));
}
uint32_t AtomicCas(uint32_t* p, uint32_t expected, uint32_t value) {
  return CasChecked(p, expected, value, __builtin_return_address(0));
}
uint64_t AtomicCas(uint64_t* p, uint64_t expected, uint64_t value) {
  return CasChecked(p, expected, value, __builtin_return_address(0));
}

}  // namespace kf::emu
