// Every tensor type against vectors of GGML's own Python reference
// (tests/data/make_dequant.py).
#include <cmath>
#include <cstring>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/core/dtype.h"

namespace kf {
namespace {

constexpr DType kAllTypes[] = {
    DType::kF32,  DType::kF16,  DType::kBF16, DType::kQ4_0,
    DType::kQ4_1, DType::kQ5_0, DType::kQ5_1, DType::kQ8_0,
    DType::kQ4_K, DType::kQ5_K, DType::kQ6_K,
};

std::vector<std::byte> FromHex(const std::string& hex) {
  std::vector<std::byte> bytes;
  for (size_t i = 0; i + 1 < hex.size(); i += 2) {
    bytes.push_back(
        static_cast<std::byte>(std::stoi(hex.substr(i, 2), nullptr, 16)));
  }
  return bytes;
}

nlohmann::json LoadVectors() {
  std::ifstream in(KF_SOURCE_DIR "/tests/data/dequant.json");
  return nlohmann::json::parse(in);
}

TEST(DequantTest, EqualsTheReferenceBitForBit) {
  std::set<std::string> seen;
  const nlohmann::json vectors = LoadVectors();
  for (const auto& test : vectors["cases"]) {
    const std::string name = test["type"];
    seen.insert(name);
    for (const DType type : kAllTypes) {
      if (NameOf(type) != name) continue;
      const std::vector<std::byte> src = FromHex(test["src"]);
      const std::vector<std::byte> want = FromHex(test["want"]);
      const size_t count = want.size() / sizeof(float);
      const BlockLayout layout = LayoutOf(type);
      ASSERT_EQ(src.size() * static_cast<size_t>(layout.elements),
                count * static_cast<size_t>(layout.bytes))
          << name;
      std::vector<float> got(count);
      Dequantize(type, src.data(), static_cast<int64_t>(count), got.data());
      for (size_t i = 0; i < count; ++i) {
        // As bits: zeros have signs.
        uint32_t expected = 0;
        std::memcpy(&expected, want.data() + i * sizeof(float), sizeof(float));
        uint32_t bits = 0;
        std::memcpy(&bits, &got[i], sizeof(float));
        ASSERT_EQ(bits, expected) << name << " element " << i << ": " << got[i];
      }
    }
  }
  EXPECT_EQ(seen.size(), std::size(kAllTypes));
}

TEST(DequantTest, NeedsNoAlignment) {
  size_t compared = 0;
  const nlohmann::json vectors = LoadVectors();
  for (const auto& test : vectors["cases"]) {
    const std::vector<std::byte> src = FromHex(test["src"]);
    std::vector<std::byte> shifted(src.size() + 1);
    std::memcpy(shifted.data() + 1, src.data(), src.size());
    for (const DType type : kAllTypes) {
      if (NameOf(type) != std::string(test["type"])) continue;
      const int64_t count = LayoutOf(type).elements;
      std::vector<float> a(static_cast<size_t>(count));
      std::vector<float> b(static_cast<size_t>(count));
      Dequantize(type, src.data(), count, a.data());
      Dequantize(type, shifted.data() + 1, count, b.data());
      EXPECT_EQ(std::memcmp(a.data(), b.data(), a.size() * sizeof(float)), 0);
      ++compared;
    }
  }
  EXPECT_EQ(compared, std::size(kAllTypes));
}

TEST(DequantTest, AHalfKeepsInfinityAndNaN) {
  const std::byte halfs[] = {std::byte{0x00}, std::byte{0x7C}, std::byte{0x00},
                             std::byte{0xFC}, std::byte{0x01}, std::byte{0x7E}};
  float got[3];
  Dequantize(DType::kF16, halfs, 3, got);
  EXPECT_EQ(got[0], std::numeric_limits<float>::infinity());
  EXPECT_EQ(got[1], -std::numeric_limits<float>::infinity());
  EXPECT_TRUE(std::isnan(got[2]));
}

TEST(DTypeTest, OnlyTheListedNumbersAreKnown) {
  int known = 0;
  for (uint32_t number = 0; number < 256; ++number) {
    const DType type = static_cast<DType>(number);
    const bool is_known = IsKnownDType(number);
    // Of a cache, and of no tensor.
    const bool laid_out = is_known || type == DType::kI8;
    EXPECT_EQ(laid_out, LayoutOf(type).elements > 0) << number;
    EXPECT_EQ(laid_out, LayoutOf(type).bytes > 0) << number;
    EXPECT_EQ(laid_out, NameOf(type) != "unknown") << number;
    known += is_known ? 1 : 0;
  }
  EXPECT_FALSE(IsKnownDType(static_cast<uint32_t>(DType::kI8)));
  EXPECT_EQ(known, static_cast<int>(std::size(kAllTypes)));
  EXPECT_FALSE(IsKnownDType(0xFFFFFFFFU));
}

}  // namespace
}  // namespace kf
