// Weights as small integers with a scale a group: what integer products
// (WeightFormat kQ8 and kQ4) are computed on.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/core/dtype.h"

namespace kf {

inline constexpr int64_t kGroupWeights = 32;

// 32 weights that follow each other in a row. Scale and minimum are values that
// a half can hold.
//   8 bits: weight i = scale * (quants[i] - 128) + minimum
//   4 bits: weight i = scale * quants[i] + minimum, quants below 16
struct WeightGroup {
  float scale = 0.0F;
  float minimum = 0.0F;
  uint8_t quants[kGroupWeights] = {};
};

// Whether a type's own groups are of 4 bits: Q4_0, Q4_1, Q4_K.
bool HasGroupsOf4Bits(DType type);

// Reads the `count` weights at `src`, a multiple of the type's block, as
// ceil(count / 32) groups; the last one is filled up with zeros. `bits` is 8,
// or 4 where HasGroupsOf4Bits.
//
// Exact for Q4_0, Q4_1, Q5_0, Q5_1 and Q8_0: the values that Dequantize gives.
// Q4_K and Q5_K: exact integers; scale and minimum, products of two numbers in
// the file, are rounded to halfs, each by at most 1 / 2,048 of itself (and
// 3e-8). Other types are rounded to 8 bits: by at most 1 / 250 of the largest
// magnitude in the group (and 4e-6). A group that has a weight that is not
// finite, or above 8e6, has NaN as its scale.
void ReadWeightGroups(DType type,
                      const std::byte* src,
                      int64_t count,
                      int bits,
                      WeightGroup* groups);

}  // namespace kf
