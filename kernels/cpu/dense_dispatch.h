// The kernels of a level, for baseline code.
#pragma once

#include "kernels/cpu/dense_kernels.h"
#include "kernels/cpu/group_kernels.h"
#include "kernels/cpu/row_block.h"
#include "kernels/cpu/simd_level.h"

namespace kf::cpu {

// `level` is one that the machine has.
const DenseKernels& DenseKernelsOf(SimdLevel level);

// With VNNI from avx512 on where the machine has it: the same bits.
const GroupKernels& GroupKernelsOf(SimdLevel level);

// Null where a level has none.
const RowBlockKernels* RowBlockKernelsOf(SimdLevel level);

}  // namespace kf::cpu
