// Instruction sets the CPU kernels are compiled for, chosen once at start.
//
// How it works: the sources in KF_SIMD_SOURCES (CMakeLists.txt here) are
// compiled once per level, each time with that level's flags and with
// KF_SIMD_LEVEL set, into the namespace kf::cpu::KF_SIMD_NS (vec.h). Each level
// exposes a table of function pointers; baseline code picks one by SimdLevel.
//
// An inline function of a shared header that such a source emits out of line
// could be the copy the linker keeps for baseline code as well, and crash an
// older machine. So those sources include only vec.h, plain structs and C
// headers: no templates of the standard library, no inline functions of other
// headers. The test simd_odr checks the object files.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

// Whether the levels above scalar are compiled: -DKF_SIMD=OFF leaves them out.
#if defined(__x86_64__) && !defined(KF_SCALAR_ONLY)
#define KF_X86_LEVELS 1
#else
#define KF_X86_LEVELS 0
#endif

namespace kf::cpu {

// Ascending: a machine that has a level has all below.
enum class SimdLevel : uint8_t {
  kScalar,
  kAvx2,
  kAvx512,
  kAvx512Bf16,
  kAmxBf16
};

inline constexpr int kSimdLevels = 5;

// "scalar", "avx2", "avx512", "avx512_bf16", "amx_bf16".
std::string_view NameOf(SimdLevel level);

// The highest level that machine and operating system support.
SimdLevel DetectSimdLevel();

// The level "auto" stands for: the highest, but avx512 on an Intel without
// tiles, whose vdpbf16ps does half the operations a second of two multiply-adds
// (Emerald Rapids: 83 against 166 GFLOP/s a core, and 1,980 on tiles);
// elsewhere (Zen 4) it does twice as many. A fixed rule, not a measurement, so
// that a machine always gives the same bits.
SimdLevel PreferredSimdLevel();

// All levels up to DetectSimdLevel(), ascending: for tests.
std::vector<SimdLevel> AvailableSimdLevels();

// "auto" or a level's name. kInvalidArgument names the value and what this
// machine offers.
absl::StatusOr<SimdLevel> ParseSimdLevel(std::string_view text);

}  // namespace kf::cpu
