#include "kernels/cpu/simd_level.h"

#include <string>

#include "kernels/core/status.h"
#include "kernels/cpu/amx.h"

namespace kf::cpu {

std::string_view NameOf(SimdLevel level) {
  switch (level) {
    case SimdLevel::kScalar:
      return "scalar";
    case SimdLevel::kAvx2:
      return "avx2";
    case SimdLevel::kAvx512:
      return "avx512";
    case SimdLevel::kAvx512Bf16:
      return "avx512_bf16";
    case SimdLevel::kAmxBf16:
      return "amx_bf16";
  }
  return "unknown";
}

SimdLevel DetectSimdLevel() {
#if KF_X86_LEVELS
  // These ask XGETBV too: a feature whose registers the operating system does
  // not save is reported as missing.
  __builtin_cpu_init();
  if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma")) {
    return SimdLevel::kScalar;
  }
  if (!__builtin_cpu_supports("avx512f") ||
      !__builtin_cpu_supports("avx512bw") ||
      !__builtin_cpu_supports("avx512dq") ||
      !__builtin_cpu_supports("avx512vl")) {
    return SimdLevel::kAvx2;
  }
  if (!__builtin_cpu_supports("avx512bf16")) return SimdLevel::kAvx512;
  return AmxBf16Usable() ? SimdLevel::kAmxBf16 : SimdLevel::kAvx512Bf16;
#else
  return SimdLevel::kScalar;
#endif
}

SimdLevel PreferredSimdLevel() {
  const SimdLevel highest = DetectSimdLevel();
#if KF_X86_LEVELS
  if (highest == SimdLevel::kAvx512Bf16 && __builtin_cpu_is("intel")) {
    return SimdLevel::kAvx512;
  }
#endif
  return highest;
}

std::vector<SimdLevel> AvailableSimdLevels() {
  std::vector<SimdLevel> levels;
  const int highest = static_cast<int>(DetectSimdLevel());
  for (int i = 0; i <= highest; ++i) levels.push_back(SimdLevel(i));
  return levels;
}

absl::StatusOr<SimdLevel> ParseSimdLevel(std::string_view text) {
  if (text == "auto") return PreferredSimdLevel();
  std::string offer = "auto";
  for (const SimdLevel level : AvailableSimdLevels()) {
    if (text == NameOf(level)) return level;
    absl::StrAppend(&offer, ", ", ToAbsl(NameOf(level)));
  }
  return absl::InvalidArgumentError(absl::StrCat(
      "simd: \"", ToAbsl(text), "\", this machine offers ", offer));
}

}  // namespace kf::cpu
