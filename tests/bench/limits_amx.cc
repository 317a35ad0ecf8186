// The limit of products on tiles.
#include "kernels/cpu/amx_tiles.h"
#include "tests/bench/limits_kernels.h"

namespace kf::cpu::KF_SIMD_NS {

// Four independent sums, as products here have at least.
int64_t DotTiles(int64_t rounds) {
  ConfigureTiles({16, 16, 16, 16, 16, 16, 16, 16});
  for (int64_t round = 0; round < rounds; ++round) {
    _tile_dpbf16ps(0, 4, 6);
    _tile_dpbf16ps(1, 4, 7);
    _tile_dpbf16ps(2, 5, 6);
    _tile_dpbf16ps(3, 5, 7);
  }
  _tile_release();
  return rounds * 4 * kTileHeight * 16 * kTilePairs * 2 * 2;
}

}  // namespace kf::cpu::KF_SIMD_NS
