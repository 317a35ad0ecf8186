// Keys that sort by rank: tokens by score, pages by bound.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>

namespace kf::cpu {

// Ascending order of the keys is descending rank, then ascending position, and
// total whatever the bits: -0 is 0, and NaN counts as infinity. position >= 0.
inline uint64_t RankKey(float rank, int32_t position) {
  if (std::isnan(rank)) rank = std::numeric_limits<float>::infinity();
  const auto bits = std::bit_cast<uint32_t>(rank + 0.0F);  // -0 becomes 0
  const uint32_t ascending = (bits >> 31) != 0 ? ~bits : bits | 0x80000000U;
  return (uint64_t{~ascending} << 32) | static_cast<uint32_t>(position);
}

inline int32_t PositionOfKey(uint64_t key) {
  return static_cast<int32_t>(static_cast<uint32_t>(key));
}

}  // namespace kf::cpu
