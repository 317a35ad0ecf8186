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

}  // namespace kf::cpu
