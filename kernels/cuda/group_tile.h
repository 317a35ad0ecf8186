// Integer weights (core/weight_groups.h) in device memory: tiles of 8 outputs
// by 128 inputs, in the order in which a warp multiplies by them. What is
// beyond the matrix is 0. The tiles of 8 outputs follow each other along the
// inputs: each warp reads one stretch of memory.
//
// Per weight 4 or 8 bits, and one more for the group's scale and minimum.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/core/weight_groups.h"

namespace kf::cuda {

inline constexpr int64_t kGroupTileOutputs = 8;
inline constexpr int64_t kGroupTileInputs = 128;
inline constexpr int64_t kGroupTileGroups = kGroupTileInputs / kGroupWeights;

// In a group, lane 4 r + t of a warp has output r's weights
//   k = 2t, 2t + 1, 2t + 8, 2t + 9, 2t + 16, 2t + 17, 2t + 24, 2t + 25:
// its parts of B in two products m16n8k16.
constexpr int64_t GroupTileInput(int64_t lane, int64_t i) {
  return lane % 4 * 2 + i / 2 * 8 + i % 2;
}

// 4 bits: word [lane][group]; byte i has weight i in its low half, weight 4 + i
// in its high one.
// 8 bits: words [group / 2][lane][group % 2 * 2 + i / 4]; byte i % 4 has weight
// i.
template <int kBits>
struct GroupTile {
  static_assert(kBits == 4 || kBits == 8);
  alignas(16) uint32_t quants[size_t{32} * kBits];
  // [output][group]: two halfs, the scale in the low one, then the minimum.
  alignas(16) uint32_t scales[kGroupTileOutputs * kGroupTileGroups];
};
static_assert(sizeof(GroupTile<4>) == 640);
static_assert(sizeof(GroupTile<8>) == 1152);

constexpr int64_t GroupTilesAlongInputs(int64_t in) {
  return (in + kGroupTileInputs - 1) / kGroupTileInputs;
}
constexpr int64_t GroupTilesAlongOutputs(int64_t out) {
  return (out + kGroupTileOutputs - 1) / kGroupTileOutputs;
}
// Of a matrix of `out` x `in`.
constexpr size_t GroupTileBytes(int bits, int64_t in, int64_t out) {
  const size_t bytes = bits == 4 ? sizeof(GroupTile<4>) : sizeof(GroupTile<8>);
  return bytes * static_cast<size_t>(GroupTilesAlongInputs(in) *
                                     GroupTilesAlongOutputs(out));
}

// Host code: writes output `row` % 8, groups[ceil(in / 32)], into the tiles of
// its 8 outputs, which are zeros before.
void PackGroups(int bits,
                const WeightGroup* groups,
                int64_t in,
                int64_t row,
                std::byte* tiles);

}  // namespace kf::cuda
