// Loops that do nothing but what the machine is limited by; per SIMD level.
#pragma once

#include <stdint.h>

namespace kf::cpu {

struct LimitKernels {
  // Independent multiply-adds (bf16: pairs) in registers; returns the floating
  // point operations done.
  int64_t (*fma_f32)(int64_t rounds);
  int64_t (*dot_bf16)(int64_t rounds);
  // Reads `bytes` as 8 streams side by side.
  void (*read)(const void* from, int64_t bytes);
};

namespace scalar {
extern const LimitKernels kLimitKernels;
}
namespace avx2 {
extern const LimitKernels kLimitKernels;
}
namespace avx512 {
extern const LimitKernels kLimitKernels;
}
namespace avx512_bf16 {
extern const LimitKernels kLimitKernels;
}
namespace amx_bf16 {
// dot_bf16 on tiles, which all else of the level does without.
int64_t DotTiles(int64_t rounds);
}  // namespace amx_bf16

}  // namespace kf::cpu
