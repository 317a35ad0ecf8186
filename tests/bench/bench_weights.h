// Weights of the benchmarks.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <span>
#include <vector>

#include "kernels/backend.h"
#include "kernels/core/dtype.h"

namespace kf::bench {

// Finite numbers of the size that a model's have: subnormal ones would take a
// hundred times as long. `bytes`: f32, or blocks of halves and quants.
inline void FillWeights(DType type, std::span<std::byte> bytes) {
  if (type != DType::kF32) {
    for (size_t i = 0; i < bytes.size(); ++i) {
      bytes[i] = static_cast<std::byte>(i * 7919 % 61);
    }
    return;
  }
  for (size_t i = 0; i < bytes.size() / sizeof(float); ++i) {
    const float weight = 0.01F * (static_cast<float>(i * 7919 % 61) - 30.0F);
    std::memcpy(bytes.data() + i * sizeof(float), &weight, sizeof(weight));
  }
}

// W [out, in] of such weights.
inline std::unique_ptr<LinearWeights> LoadWeights(Backend& backend,
                                                  WeightFormat format,
                                                  int64_t out,
                                                  int64_t in) {
  const DType type = format == WeightFormat::kQ4 ? DType::kQ4_1 : DType::kF32;
  const BlockLayout layout = LayoutOf(type);
  std::vector<std::byte> values(
      static_cast<size_t>(out * in / layout.elements * layout.bytes));
  FillWeights(type, values);
  const WeightView view = {type, out, in, values.data()};
  return backend.LoadLinear({&view, 1}, format).value();
}

}  // namespace kf::bench
