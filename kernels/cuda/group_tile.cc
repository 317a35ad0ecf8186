#include "kernels/cuda/group_tile.h"

#include "kernels/core/half.h"
#include "kernels/core/status.h"

namespace kf::cuda {
namespace {

// Byte i of the word: weights first + i of the lane.
uint32_t FourBytes(const WeightGroup& group, int64_t lane, int64_t first) {
  uint32_t word = 0;
  for (int64_t i = 0; i < 4; ++i) {
    const uint32_t quant = group.quants[GroupTileInput(lane, first + i)];
    word |= quant << (8 * i);
  }
  return word;
}

void PackQuants(const WeightGroup& group,
                int64_t lane,
                int64_t j,
                GroupTile<4>& tile) {
  tile.quants[lane * 4 + j] =
      FourBytes(group, lane, 0) | FourBytes(group, lane, 4) << 4;
}
void PackQuants(const WeightGroup& group,
                int64_t lane,
                int64_t j,
                GroupTile<8>& tile) {
  uint32_t* const words = &tile.quants[j / 2 * 128 + lane * 4 + j % 2 * 2];
  words[0] = FourBytes(group, lane, 0);
  words[1] = FourBytes(group, lane, 4);
}

template <int kBits>
void Pack(const WeightGroup* groups, int64_t in, int64_t row, std::byte* to) {
  auto* const tiles = reinterpret_cast<GroupTile<kBits>*>(to);
  const int64_t r = row % kGroupTileOutputs;
  const int64_t count = (in + kGroupWeights - 1) / kGroupWeights;
  for (int64_t g = 0; g < count; ++g) {
    GroupTile<kBits>& tile = tiles[g / kGroupTileGroups];
    const int64_t j = g % kGroupTileGroups;
    for (int64_t t = 0; t < 4; ++t) {
      PackQuants(groups[g], 4 * r + t, j, tile);
    }
    tile.scales[r * kGroupTileGroups + j] =
        uint32_t{FloatToHalf(groups[g].scale)} |
        uint32_t{FloatToHalf(groups[g].minimum)} << 16;
  }
}

}  // namespace

void PackGroups(int bits,
                const WeightGroup* groups,
                int64_t in,
                int64_t row,
                std::byte* tiles) {
  KF_CHECK(bits == 4 || bits == 8);
  if (bits == 4) {
    Pack<4>(groups, in, row, tiles);
  } else {
    Pack<8>(groups, in, row, tiles);
  }
}

}  // namespace kf::cuda
