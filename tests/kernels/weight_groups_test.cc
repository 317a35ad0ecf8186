// Weights in groups against their dequantised values.
#include "kernels/core/weight_groups.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "kernels/core/half.h"
#include "tests/kernels/dense_test_util.h"

namespace kf {
namespace {

constexpr int64_t kCount = 512;

std::vector<float> Dequantized(const TestMatrix& m) {
  std::vector<float> values(kCount);
  Dequantize(m.view.type, m.view.data, kCount, values.data());
  return values;
}

std::vector<WeightGroup> GroupsOf(const TestMatrix& m, int bits) {
  std::vector<WeightGroup> groups(kCount / kGroupWeights);
  ReadWeightGroups(m.view.type, m.view.data, kCount, bits, groups.data());
  return groups;
}

double ValueOf(const WeightGroup& group, int64_t i, int bits) {
  const int quant = int{group.quants[i]} - (bits == 8 ? 128 : 0);
  return static_cast<double>(group.scale) * quant +
         static_cast<double>(group.minimum);
}

TEST(WeightGroups, AreExactForGroupsOf32) {
  for (const DType type :
       {DType::kQ4_0, DType::kQ4_1, DType::kQ5_0, DType::kQ5_1, DType::kQ8_0}) {
    const TestMatrix m = RandomMatrix(type, 1, kCount, 40);
    const std::vector<float> want = Dequantized(m);
    for (const int bits : {8, 4}) {
      if (bits == 4 && !HasGroupsOf4Bits(type)) continue;
      const std::vector<WeightGroup> groups = GroupsOf(m, bits);
      for (int64_t i = 0; i < kCount; ++i) {
        const WeightGroup& group = groups[static_cast<size_t>(i / 32)];
        ASSERT_EQ(static_cast<float>(ValueOf(group, i % 32, bits)),
                  want[static_cast<size_t>(i)])
            << NameOf(type) << " in " << bits << " bits, weight " << i;
      }
    }
  }
}

TEST(WeightGroups, RoundTheScalesOfKQuants) {
  for (const DType type : {DType::kQ4_K, DType::kQ5_K}) {
    const TestMatrix m = RandomMatrix(type, 1, kCount, 41);
    const std::vector<float> want = Dequantized(m);
    for (const int bits : {8, 4}) {
      if (bits == 4 && !HasGroupsOf4Bits(type)) continue;
      const std::vector<WeightGroup> groups = GroupsOf(m, bits);
      for (int64_t i = 0; i < kCount; ++i) {
        const WeightGroup& group = groups[static_cast<size_t>(i / 32)];
        const double limit = (31.0 * static_cast<double>(group.scale) +
                              std::fabs(static_cast<double>(group.minimum))) /
                                 2048 +
                             1e-6;
        ASSERT_NEAR(ValueOf(group, i % 32, bits),
                    static_cast<double>(want[static_cast<size_t>(i)]), limit)
            << NameOf(type) << " in " << bits << " bits, weight " << i;
      }
    }
  }
}

TEST(WeightGroups, RoundOtherTypesTo8Bits) {
  for (const DType type :
       {DType::kF32, DType::kF16, DType::kBF16, DType::kQ6_K}) {
    const TestMatrix m = RandomMatrix(type, 1, kCount, 42);
    const std::vector<float> want = Dequantized(m);
    const std::vector<WeightGroup> groups = GroupsOf(m, 8);
    for (int64_t first = 0; first < kCount; first += kGroupWeights) {
      const WeightGroup& group = groups[static_cast<size_t>(first / 32)];
      EXPECT_EQ(group.scale, HalfToFloat(FloatToHalf(group.scale)));
      double largest = 0;
      for (int64_t i = first; i < first + 32; ++i) {
        largest = std::max(
            largest,
            std::fabs(static_cast<double>(want[static_cast<size_t>(i)])));
      }
      for (int64_t i = 0; i < 32; ++i) {
        ASSERT_NEAR(ValueOf(group, i, 8),
                    static_cast<double>(want[static_cast<size_t>(first + i)]),
                    largest / 250 + 4e-6)
            << NameOf(type) << " weight " << first + i;
      }
    }
  }
}

TEST(WeightGroups, FillTheLastGroupWithZeros) {
  const std::vector<float> values = RandomValues(33, 9);
  WeightGroup groups[2];
  ReadWeightGroups(DType::kF32,
                   reinterpret_cast<const std::byte*>(values.data()), 33, 8,
                   groups);
  EXPECT_NE(ValueOf(groups[1], 0, 8), 0.0);
  for (int64_t i = 1; i < 32; ++i) EXPECT_EQ(ValueOf(groups[1], i, 8), 0.0);
}

TEST(WeightGroups, MarkGroupsThatCannotBeHeld) {
  for (const float bad : {std::numeric_limits<float>::quiet_NaN(),
                          std::numeric_limits<float>::infinity(), 1e8F}) {
    std::vector<float> values = RandomValues(64, 9);
    values[40] = bad;
    WeightGroup groups[2];
    ReadWeightGroups(DType::kF32,
                     reinterpret_cast<const std::byte*>(values.data()), 64, 8,
                     groups);
    EXPECT_TRUE(std::isfinite(groups[0].scale));
    EXPECT_TRUE(std::isnan(groups[1].scale));
  }
}

TEST(Half, EveryValueReturns) {
  for (uint32_t bits = 0; bits < 0x10000; ++bits) {
    const auto half = static_cast<uint16_t>(bits);
    const float value = HalfToFloat(half);
    if (std::isnan(value)) {
      EXPECT_TRUE(std::isnan(HalfToFloat(FloatToHalf(value))));
    } else {
      ASSERT_EQ(FloatToHalf(value), half);
    }
  }
}

TEST(Half, RoundsToNearestEven) {
  EXPECT_EQ(FloatToHalf(1.0F + 0x1p-11F), 0x3C00);      // a tie, down
  EXPECT_EQ(FloatToHalf(1.0F + 3 * 0x1p-11F), 0x3C02);  // a tie, up
  EXPECT_EQ(FloatToHalf(1.0F + 0x1.1p-11F), 0x3C01);
  EXPECT_EQ(FloatToHalf(65519.0F), 0x7BFF);
  EXPECT_EQ(FloatToHalf(-65520.0F), 0xFC00);
  EXPECT_EQ(FloatToHalf(0x1p-25F), 0x0000);      // half of the smallest, a tie
  EXPECT_EQ(FloatToHalf(0x1.8p-25F), 0x0001);    // above it
  EXPECT_EQ(FloatToHalf(0x1.FFEp-15F), 0x0400);  // a subnormal that carries
}

}  // namespace
}  // namespace kf
