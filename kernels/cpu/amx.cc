#include "kernels/cpu/amx.h"

#if defined(__x86_64__) && defined(__linux__)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace kf::cpu {
namespace {

#if defined(__x86_64__) && defined(__linux__)

bool HasTiles() {
  constexpr unsigned int kXsaveInUse = 1U << 27;  // leaf 1, ecx
  constexpr unsigned int kBf16 = 1U << 22;        // leaf 7, edx
  constexpr unsigned int kTile = 1U << 24;
  constexpr unsigned int kTileState = 3U << 17;  // of XCR0
  unsigned int eax = 0;
  unsigned int ebx = 0;
  unsigned int ecx = 0;
  unsigned int edx = 0;
  if (__get_cpuid(1, &eax, &ebx, &ecx, &edx) == 0) return false;
  if ((ecx & kXsaveInUse) == 0) return false;
  if (__get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx) == 0) return false;
  if ((edx & kBf16) == 0 || (edx & kTile) == 0) return false;
  unsigned int low = 0;
  unsigned int high = 0;
  __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  return (low & kTileState) == kTileState;
}

// Linux gives the 8 KiB of tile registers to processes that ask for them, once
// for all threads (Documentation/arch/x86/xstate.rst).
bool AskForTiles() {
  constexpr long kRequestPermission = 0x1023;  // ARCH_REQ_XCOMP_PERM
  constexpr long kTileData = 18;               // XFEATURE_XTILEDATA
  return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
}

#else

bool HasTiles() { return false; }
bool AskForTiles() { return false; }

#endif

}  // namespace

bool AmxBf16Usable() {
  static const bool usable = HasTiles() && AskForTiles();
  return usable;
}

}  // namespace kf::cpu
