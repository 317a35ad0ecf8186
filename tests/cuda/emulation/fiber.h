// Stacks that can be switched between: one a CUDA thread. The switch is six
// pushes on x86-64 (26-48 ns, where ucontext's system call takes 460-710);
// elsewhere ucontext.
#pragma once

#include <cstddef>

#if !defined(__x86_64__)
#include <ucontext.h>
#endif

namespace kf::emu {

class FiberContext {
 public:
  // The next Switch to it calls `entry`, which must not return.
  void Start(char* stack, size_t bytes, void (*entry)());
  static void Switch(FiberContext& from, FiberContext& to);

 private:
#if defined(__x86_64__)
  void* stack_pointer_ = nullptr;
#else
  ucontext_t context_;
#endif
};

}  // namespace kf::emu
