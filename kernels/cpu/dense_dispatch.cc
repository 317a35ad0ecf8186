#include "kernels/cpu/dense_dispatch.h"

namespace kf::cpu {

const DenseKernels& DenseKernelsOf(SimdLevel level) {
  switch (level) {
#if defined(__x86_64__)
    case SimdLevel::kAvx2:
      return avx2::kDenseKernels;
    case SimdLevel::kAvx512:
      return avx512::kDenseKernels;
    case SimdLevel::kAvx512Bf16:
      return avx512_bf16::kDenseKernels;
#endif
    default:
      return scalar::kDenseKernels;
  }
}

const GroupKernels& GroupKernelsOf(SimdLevel level) {
  switch (level) {
#if defined(__x86_64__)
    case SimdLevel::kAvx2:
      return avx2::kGroupKernels;
    case SimdLevel::kAvx512:
    case SimdLevel::kAvx512Bf16:
      __builtin_cpu_init();
      return __builtin_cpu_supports("avx512vnni") ? avx512_vnni::kGroupKernels
                                                  : avx512::kGroupKernels;
#endif
    default:
      return scalar::kGroupKernels;
  }
}

}  // namespace kf::cpu
