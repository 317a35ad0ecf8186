#include "kernels/cpu/dense_dispatch.h"

#include "kernels/cpu/tile_kernels.h"

namespace kf::cpu {

#if KF_X86_LEVELS
namespace {

// Tiles for bf16 products; for the rest avx512, whose multiply-adds are faster
// than pairs of bf16 where there are tiles.
const DenseKernels& DenseKernelsWithTiles() {
  static const DenseKernels kernels = [] {
    DenseKernels with_tiles = avx512::kDenseKernels;
    with_tiles.linear_bf16 = amx_bf16::LinearTiles;
    with_tiles.pack_row = amx_bf16::PackTileRow;
    with_tiles.bf16_row_bytes = amx_bf16::TileRowBytes;
    with_tiles.widened_floats = [](int64_t) { return int64_t{0}; };
    return with_tiles;
  }();
  return kernels;
}

}  // namespace
#endif

const DenseKernels& DenseKernelsOf(SimdLevel level) {
  switch (level) {
#if KF_X86_LEVELS
    case SimdLevel::kAvx2:
      return avx2::kDenseKernels;
    case SimdLevel::kAvx512:
      return avx512::kDenseKernels;
    case SimdLevel::kAvx512Bf16:
      return avx512_bf16::kDenseKernels;
    case SimdLevel::kAmxBf16:
      return DenseKernelsWithTiles();
#endif
    default:
      return scalar::kDenseKernels;
  }
}

const GroupKernels& GroupKernelsOf(SimdLevel level) {
  switch (level) {
#if KF_X86_LEVELS
    case SimdLevel::kAvx2:
      return avx2::kGroupKernels;
    case SimdLevel::kAvx512:
    case SimdLevel::kAvx512Bf16:
    case SimdLevel::kAmxBf16:
      __builtin_cpu_init();
      return __builtin_cpu_supports("avx512vnni") ? avx512_vnni::kGroupKernels
                                                  : avx512::kGroupKernels;
#endif
    default:
      return scalar::kGroupKernels;
  }
}

const RowBlockKernels* RowBlockKernelsOf(SimdLevel level) {
#if KF_X86_LEVELS
  if (level == SimdLevel::kAmxBf16) return &amx_bf16::kRowBlockKernels;
#endif
  static_cast<void>(level);
  return nullptr;
}

}  // namespace kf::cpu
