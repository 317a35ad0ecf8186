// What the emulator tells the sanitizers, in each of the three builds:
// AddressSanitizer (asan), the own checker (check: KF_EMU_CHECK), none (plain).
#pragma once

#include <cstddef>

#if defined(__SANITIZE_ADDRESS__)
#define KF_EMU_ASAN 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define KF_EMU_ASAN 1
#endif
#endif

#if defined(KF_EMU_ASAN)
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif

namespace kf::emu {

inline void ForbidAccess([[maybe_unused]] const void* p,
                         [[maybe_unused]] size_t bytes) {
#if defined(KF_EMU_ASAN)
  ASAN_POISON_MEMORY_REGION(p, bytes);
#endif
}
inline void AllowAccess([[maybe_unused]] const void* p,
                        [[maybe_unused]] size_t bytes) {
#if defined(KF_EMU_ASAN)
  ASAN_UNPOISON_MEMORY_REGION(p, bytes);
#endif
}

// Around a switch of stacks; `fake` is where the stack that is left keeps its
// fake frames, null when it is left for good.
inline void BeforeSwitch([[maybe_unused]] void** fake,
                         [[maybe_unused]] const void* stack,
                         [[maybe_unused]] size_t bytes) {
#if defined(KF_EMU_ASAN)
  __sanitizer_start_switch_fiber(fake, stack, bytes);
#endif
}
inline void AfterSwitch([[maybe_unused]] void* fake,
                        [[maybe_unused]] const void** left_stack,
                        [[maybe_unused]] size_t* left_bytes) {
#if defined(KF_EMU_ASAN)
  __sanitizer_finish_switch_fiber(fake, left_stack, left_bytes);
#endif
}

}  // namespace kf::emu
