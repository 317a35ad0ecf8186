// The kernels of a level, for baseline code.
#pragma once

#include "kernels/cpu/dense_kernels.h"
#include "kernels/cpu/simd_level.h"

namespace kf::cpu {

// `level` is one that the machine has.
const DenseKernels& DenseKernelsOf(SimdLevel level);

}  // namespace kf::cpu
