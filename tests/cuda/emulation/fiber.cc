#include "tests/cuda/emulation/fiber.h"

#include <cstdint>

#if defined(__x86_64__)
extern "C" void kf_emu_switch(void** save, void* load);
// Saves what the System V ABI asks a callee to keep. The control words of SSE
// and x87 are left: no kernel changes them.
asm(R"(
.text
.globl kf_emu_switch
.type kf_emu_switch,@function
kf_emu_switch:
  push %rbp
  push %rbx
  push %r12
  push %r13
  push %r14
  push %r15
  mov %rsp,(%rdi)
  mov %rsi,%rsp
  pop %r15
  pop %r14
  pop %r13
  pop %r12
  pop %rbx
  pop %rbp
  ret
.size kf_emu_switch,.-kf_emu_switch
)");
#endif

namespace kf::emu {

#if defined(__x86_64__)
void FiberContext::Start(char* stack, size_t bytes, void (*entry)()) {
  const uintptr_t end = reinterpret_cast<uintptr_t>(stack) + bytes;
  auto** top = reinterpret_cast<void**>(end & ~uintptr_t{63});
  *--top = nullptr;  // rsp % 16 == 8 at entry, as after a call
  *--top = reinterpret_cast<void*>(entry);
  for (int i = 0; i < 6; ++i) *--top = nullptr;
  stack_pointer_ = static_cast<void*>(top);
}

void FiberContext::Switch(FiberContext& from, FiberContext& to) {
  kf_emu_switch(&from.stack_pointer_, to.stack_pointer_);
}
#else
void FiberContext::Start(char* stack, size_t bytes, void (*entry)()) {
  getcontext(&context_);
  context_.uc_stack.ss_sp = stack;
  context_.uc_stack.ss_size = bytes;
  context_.uc_link = nullptr;
  makecontext(&context_, entry, 0);
}

void FiberContext::Switch(FiberContext& from, FiberContext& to) {
  swapcontext(&from.context_, &to.context_);
}
#endif

}  // namespace kf::emu
