// Cosines and sines of rotary embeddings.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/backend.h"

namespace kf::cpu {

// cos and sin of position * base^(-2i / rotary_dim), computed in double and
// rounded once: a sum of two tabled angles, 64 a + b, so that 2,048 positions
// need 96 rows. A position's values depend on the position alone.
//
// Prepare is called by the engine thread; Row by any thread after it.
class RopeTable {
 public:
  // Makes positions 0 .. max_position available for the shape. The table grows
  // to rotary_dim * 8 bytes for every 64 positions of the longest sequence; its
  // memory is reserved at the first call for kReserved positions, so that a
  // decode step does not allocate.
  void Prepare(const AttentionShape& shape, int32_t max_position);

  // Writes pairs {cos, sin} for each i: rotary_dim floats.
  void Row(int32_t position, float* cos_sin) const;

 private:
  static constexpr int32_t kFine = 64;
  static constexpr int32_t kReserved = 131072;

  void AddRow(int32_t position, std::vector<double>& to) const;

  int32_t rotary_dim_ = 0;
  double base_ = 0.0;
  std::vector<double> fine_;    // [kFine][rotary_dim], pairs {cos, sin}
  std::vector<double> coarse_;  // [...][rotary_dim], of position kFine * row
};

}  // namespace kf::cpu
