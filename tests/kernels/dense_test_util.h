// What the tests of the dense operations share.
#pragma once

#include <cstdint>
#include <cstring>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "kernels/backend.h"
#include "kernels/core/dtype.h"
#include "kernels/core/noise.h"
#include "kernels/cpu/simd_level.h"

namespace kf {

inline std::unique_ptr<Backend> CpuBackendAt(cpu::SimdLevel level,
                                             int threads) {
  return CreateBackend({.name = "cpu",
                        .threads = threads,
                        .simd = std::string(cpu::NameOf(level))})
      .value();
}

inline std::string NameOf(WeightFormat format) {
  switch (format) {
    case WeightFormat::kF32:
      return "F32";
    case WeightFormat::kBF16:
      return "BF16";
    case WeightFormat::kQ8:
      return "Q8";
    case WeightFormat::kQ4:
      return "Q4";
  }
  return "unknown";
}
inline constexpr WeightFormat kWeightFormats[] = {
    WeightFormat::kF32, WeightFormat::kBF16, WeightFormat::kQ8,
    WeightFormat::kQ4};

// Reproducible values in (-1, 1), every 50th one 20 times as large: outliers
// show what uniform values hide.
inline std::vector<float> RandomValues(int64_t count, uint32_t seed) {
  std::vector<float> values(static_cast<size_t>(count));
  for (size_t i = 0; i < values.size(); ++i) {
    const auto key = static_cast<uint32_t>(i);
    const float u = NoiseU({seed, seed + 1}, key) * 2.0F - 1.0F;
    values[i] = i % 50 == 7 ? 20.0F * u : u;
  }
  return values;
}

// A matrix of any type, with its memory. Quantised blocks are random bytes with
// no fp16 above 1, so every scale is finite.
struct TestMatrix {
  std::vector<std::byte> bytes;
  WeightView view;
};
inline TestMatrix RandomMatrix(DType type,
                               int64_t rows,
                               int64_t cols,
                               uint32_t seed) {
  TestMatrix m;
  const BlockLayout layout = LayoutOf(type);
  const int64_t size = rows * cols / layout.elements * layout.bytes;
  m.bytes.resize(static_cast<size_t>(size));
  if (type == DType::kF32) {
    const std::vector<float> values = RandomValues(rows * cols, seed);
    std::memcpy(m.bytes.data(), values.data(), m.bytes.size());
  } else {
    for (size_t i = 0; i < m.bytes.size(); ++i) {
      const uint32_t random = MixBits(seed + static_cast<uint32_t>(i));
      m.bytes[i] = static_cast<std::byte>(random & 0x3B);
    }
  }
  m.view = {type, rows, cols, m.bytes.data()};
  return m;
}

inline std::string BitsOf(std::span<const float> values) {
  return {reinterpret_cast<const char*>(values.data()), values.size_bytes()};
}

}  // namespace kf
