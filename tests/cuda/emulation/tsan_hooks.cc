// What gcc's -fsanitize=thread calls, with our own checker behind it in place
// of libtsan: each load and store of a kernel, at no change to its source. Host
// code that is compiled so calls the hooks too; there they do nothing.
//
// A memcpy whose size the compiler does not know is not reported here (libtsan
// would intercept it); the asan build sees it.
#include <atomic>
#include <cstddef>
#include <cstdint>

#include "tests/cuda/emulation/block.h"
#include "tests/cuda/emulation/shadow.h"

namespace kf::emu {
namespace {

void Hook(void* p, size_t bytes, Access access, bool aligned, void* pc) {
  if (self == nullptr) return;
  const Block& b = ThisBlock();
  if (b.stop || b.in_op) return;
  if (aligned && reinterpret_cast<uintptr_t>(p) % bytes != 0) {
    Fail("misaligned: %zu-byte access to %p at %s", bytes, p,
         DescribePlace(pc));
  }
  ShadowAccess(p, bytes, access, pc);
}

}  // namespace
}  // namespace kf::emu

using kf::emu::Access;
using kf::emu::Hook;

// NOLINTBEGIN(bugprone-reserved-identifier): names that the compiler calls
#define KF_PC __builtin_return_address(0)
#define KF_HOOKS(n)                                                          \
  void __tsan_read##n(void* p) { Hook(p, n, Access::kRead, true, KF_PC); }   \
  void __tsan_write##n(void* p) { Hook(p, n, Access::kWrite, true, KF_PC); } \
  void __tsan_read_write##n(void* p) {                                       \
    Hook(p, n, Access::kRead, true, KF_PC);                                  \
    Hook(p, n, Access::kWrite, true, KF_PC);                                 \
  }                                                                          \
  void __tsan_volatile_read##n(void* p) {                                    \
    Hook(p, n, Access::kRead, true, KF_PC);                                  \
  }                                                                          \
  void __tsan_volatile_write##n(void* p) {                                   \
    Hook(p, n, Access::kWrite, true, KF_PC);                                 \
  }                                                                          \
  void __tsan_unaligned_read##n(void* p) {                                   \
    Hook(p, n, Access::kRead, false, KF_PC);                                 \
  }                                                                          \
  void __tsan_unaligned_write##n(void* p) {                                  \
    Hook(p, n, Access::kWrite, false, KF_PC);                                \
  }

// Atomics of host code (kernels go through the emulator's): the plain builtins.
#define KF_ATOMICS(bits)                                                       \
  using Word##bits = uint##bits##_t;                                           \
  Word##bits __tsan_atomic##bits##_load(const volatile Word##bits* p, int) {   \
    return __atomic_load_n(p, __ATOMIC_SEQ_CST);                               \
  }                                                                            \
  void __tsan_atomic##bits##_store(volatile Word##bits* p, Word##bits v,       \
                                   int) {                                      \
    __atomic_store_n(p, v, __ATOMIC_SEQ_CST);                                  \
  }                                                                            \
  Word##bits __tsan_atomic##bits##_exchange(volatile Word##bits* p,            \
                                            Word##bits v, int) {               \
    return __atomic_exchange_n(p, v, __ATOMIC_SEQ_CST);                        \
  }                                                                            \
  Word##bits __tsan_atomic##bits##_fetch_add(volatile Word##bits* p,           \
                                             Word##bits v, int) {              \
    return __atomic_fetch_add(p, v, __ATOMIC_SEQ_CST);                         \
  }                                                                            \
  Word##bits __tsan_atomic##bits##_fetch_sub(volatile Word##bits* p,           \
                                             Word##bits v, int) {              \
    return __atomic_fetch_sub(p, v, __ATOMIC_SEQ_CST);                         \
  }                                                                            \
  Word##bits __tsan_atomic##bits##_fetch_and(volatile Word##bits* p,           \
                                             Word##bits v, int) {              \
    return __atomic_fetch_and(p, v, __ATOMIC_SEQ_CST);                         \
  }                                                                            \
  Word##bits __tsan_atomic##bits##_fetch_or(volatile Word##bits* p,            \
                                            Word##bits v, int) {               \
    return __atomic_fetch_or(p, v, __ATOMIC_SEQ_CST);                          \
  }                                                                            \
  Word##bits __tsan_atomic##bits##_fetch_xor(volatile Word##bits* p,           \
                                             Word##bits v, int) {              \
    return __atomic_fetch_xor(p, v, __ATOMIC_SEQ_CST);                         \
  }                                                                            \
  bool __tsan_atomic##bits##_compare_exchange_strong(                          \
      volatile Word##bits* p, Word##bits* expected, Word##bits v, int, int) {  \
    return __atomic_compare_exchange_n(p, expected, v, false,                  \
                                       __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);    \
  }                                                                            \
  bool __tsan_atomic##bits##_compare_exchange_weak(                            \
      volatile Word##bits* p, Word##bits* expected, Word##bits v, int, int) {  \
    return __atomic_compare_exchange_n(p, expected, v, true, __ATOMIC_SEQ_CST, \
                                       __ATOMIC_SEQ_CST);                      \
  }

extern "C" {
KF_HOOKS(1)
KF_HOOKS(2)
KF_HOOKS(4)
KF_HOOKS(8)
KF_HOOKS(16)
void __tsan_read_range(void* p, size_t bytes) {
  Hook(p, bytes, Access::kRead, false, KF_PC);
}
void __tsan_write_range(void* p, size_t bytes) {
  Hook(p, bytes, Access::kWrite, false, KF_PC);
}
KF_ATOMICS(8)
KF_ATOMICS(16)
KF_ATOMICS(32)
KF_ATOMICS(64)
void __tsan_atomic_thread_fence(int) {
  std::atomic_thread_fence(std::memory_order_seq_cst);
}
void __tsan_atomic_signal_fence(int) {
  std::atomic_signal_fence(std::memory_order_seq_cst);
}
void __tsan_init() {}
void __tsan_func_entry(void*) {}
void __tsan_func_exit() {}
void __tsan_vptr_update(void**, void*) {}
void __tsan_vptr_read(void**) {}
}
// NOLINTEND(bugprone-reserved-identifier)
