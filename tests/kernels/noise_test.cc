// Keyformer's noise: known answers of its generators, its distribution, and the
// vector code against the double reference.
#include "kernels/core/noise.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/cpu/attention_layout.h"
#include "kernels/cpu/simd_level.h"

namespace kf {
namespace {

// Random123's kat_vectors for philox4x32-10.
TEST(Noise, PhiloxKnownAnswers) {
  const Philox4 zero = Philox4x32(0, 0, 0, 0, 0, 0);
  EXPECT_EQ(zero.word[0], 0x6627E8D5U);
  EXPECT_EQ(zero.word[1], 0xE169C58DU);
  EXPECT_EQ(zero.word[2], 0xBC57AC4CU);
  EXPECT_EQ(zero.word[3], 0x9B00DBD8U);
  const Philox4 ones = Philox4x32(~0U, ~0U, ~0U, ~0U, ~0U, ~0U);
  EXPECT_EQ(ones.word[0], 0x408F276DU);
  EXPECT_EQ(ones.word[1], 0x41C83B0EU);
  EXPECT_EQ(ones.word[2], 0xA20BC7C6U);
  EXPECT_EQ(ones.word[3], 0x6D5451FDU);
  const Philox4 pi = Philox4x32(0x243F6A88U, 0x85A308D3U, 0x13198A2EU,
                                0x03707344U, 0xA4093822U, 0x299F31D0U);
  EXPECT_EQ(pi.word[0], 0xD16CFE09U);
  EXPECT_EQ(pi.word[1], 0x94FDCCEBU);
  EXPECT_EQ(pi.word[2], 0x5001E420U);
  EXPECT_EQ(pi.word[3], 0x24126EA1U);
}

TEST(Noise, UnitIntervalIsOpen) {
  EXPECT_EQ(UnitInterval(0), 0x1p-24F);
  EXPECT_EQ(UnitInterval(~0U), 1.0F - 0x1p-24F);
}

TEST(Noise, OneDrawAKeyWhenResampledOnce) {
  const NoiseRow a = MakeNoiseRow(9, kEveryQuery, 2, 3, 0);
  const NoiseRow b = MakeNoiseRow(9, 17, 2, 3, 0);
  EXPECT_NE(a.a, b.a);
  // Layers, heads, streams and seeds differ too.
  EXPECT_NE(a.a, MakeNoiseRow(9, kEveryQuery, 3, 3, 0).a);
  EXPECT_NE(a.a, MakeNoiseRow(9, kEveryQuery, 2, 4, 0).a);
  EXPECT_NE(a.a, MakeNoiseRow(9, kEveryQuery, 2, 3, 1).a);
  EXPECT_NE(a.a, MakeNoiseRow(9 + (1ULL << 32), kEveryQuery, 2, 3, 0).a);
}

// Mean and variance of a standard Gumbel, for both random kinds.
TEST(Noise, Moments) {
  for (const NoiseKind kind : {NoiseKind::kGumbel, NoiseKind::kGaussian}) {
    double sum = 0.0;
    double squares = 0.0;
    constexpr int kRows = 200;
    constexpr int kKeys = 1000;
    for (uint32_t q = 0; q < kRows; ++q) {
      const NoiseRow row = MakeNoiseRow(1, q, 0, 0, 0);
      for (uint32_t k = 0; k < kKeys; ++k) {
        const double z = NoiseZeta(kind, row, k);
        sum += z;
        squares += z * z;
      }
    }
    const double mean = sum / (kRows * kKeys);
    const double variance = squares / (kRows * kKeys) - mean * mean;
    EXPECT_NEAR(mean, 0.5772157, 0.012);
    EXPECT_NEAR(variance, 1.6449341, 0.03);
  }
}

// MixBits is a bijection: its inverse finds the key whose u is any given one.
uint32_t UnmixBits(uint32_t x) {
  x ^= x >> 16;
  x *= 0x43021123U;
  x ^= (x >> 15) ^ (x >> 30);
  x *= 0x1D69E2A5U;
  return x ^ (x >> 16);
}

class VectorNoise : public ::testing::TestWithParam<std::string> {};

TEST_P(VectorNoise, WithinTolerance) {
  const auto level = cpu::ParseSimdLevel(GetParam());
  ASSERT_TRUE(level.ok());
  const cpu::AttentionKernels& kernels = cpu::KernelsOf(*level);
  const NoiseRow row = MakeNoiseRow(42, 7, 3, 5, 0);
  std::vector<int32_t> keys;
  for (int32_t i = 0; i < 20011; ++i) keys.push_back(i);
  // The keys whose u is extreme: the first and last steps of 2^-23, and around
  // 1/2, sqrt(1/2) and 1/e.
  const auto add = [&](uint32_t step) {
    const uint32_t word = (step << 9) | 0x123U;
    const uint32_t key = UnmixBits(UnmixBits(word) - row.b) ^ row.a;
    ASSERT_EQ(NoiseU(row, key), UnitInterval(word));
    keys.push_back(static_cast<int32_t>(key));
  };
  for (uint32_t i = 0; i < 3000; ++i) {
    add(i);
    add((1U << 23) - 1 - i);
    add((1U << 22) - 1500 + i);
    add(5931642U - 1500 + i);
    add(3086036U - 1500 + i);
  }
  ASSERT_EQ(UnmixBits(MixBits(0xDEADBEEFU)), 0xDEADBEEFU);
  std::vector<float> zeta(keys.size());
  for (const NoiseKind kind : {NoiseKind::kNone, NoiseKind::kConstant,
                               NoiseKind::kGumbel, NoiseKind::kGaussian}) {
    kernels.noise(static_cast<int32_t>(kind), {row.a, row.b}, keys.data(),
                  static_cast<int64_t>(keys.size()), zeta.data());
    double largest = 0.0;
    for (size_t i = 0; i < keys.size(); ++i) {
      const double want = NoiseZeta(kind, row, static_cast<uint32_t>(keys[i]));
      const double error = std::abs(static_cast<double>(zeta[i]) - want);
      ASSERT_TRUE(error <= 1e-5)
          << "key " << keys[i] << ": " << zeta[i] << ", want " << want;
      largest = std::max(largest, std::abs(want));
    }
    // The extremes were among them.
    if (kind == NoiseKind::kGumbel) {
      EXPECT_GT(largest, 16.0);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Levels,
                         VectorNoise,
                         ::testing::ValuesIn([] {
                           std::vector<std::string> names;
                           for (const auto level : cpu::AvailableSimdLevels()) {
                             names.emplace_back(cpu::NameOf(level));
                           }
                           return names;
                         }()),
                         [](const auto& param_info) {
                           return param_info.param;
                         });

}  // namespace
}  // namespace kf
