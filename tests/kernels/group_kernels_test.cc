// Products with 8-bit and 4-bit weights, below what linear_test sees of them.
#include "kernels/cpu/group_kernels.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "kernels/core/weight_groups.h"
#include "kernels/ref/ref_backend.h"
#include "tests/kernels/dense_test_util.h"
#include "tests/testing/matchers.h"

namespace kf {
namespace {

using testing::IsOk;

std::vector<float> Product(Backend& backend,
                           std::span<const WeightView> stacked,
                           WeightFormat format,
                           std::span<const float> x) {
  auto w = backend.LoadLinear(stacked, format).value();
  const int64_t rows = static_cast<int64_t>(x.size()) / w->in();
  std::vector<float> out(static_cast<size_t>(rows * w->out()));
  EXPECT_THAT(backend.Linear(*w, x.data(), rows, out.data()), IsOk());
  return out;
}

// Panels of 4 and of 8 bits in one stack, and panels that hold rows of both.
TEST(GroupLinear, MixesBitsInOneStack) {
  constexpr int64_t kIn = 512;
  constexpr int64_t kRows = 9;
  const DType types[] = {DType::kQ4_1, DType::kQ6_K, DType::kQ4_K, DType::kQ8_0,
                         DType::kQ4_0};
  const int64_t outs[] = {70, 16, 42, 33, 130};
  std::vector<TestMatrix> matrices;
  std::vector<WeightView> stacked;
  for (size_t i = 0; i < std::size(types); ++i) {
    matrices.push_back(
        RandomMatrix(types[i], outs[i], kIn, 60 + static_cast<uint32_t>(i)));
  }
  stacked.reserve(matrices.size());
  for (const TestMatrix& m : matrices) stacked.push_back(m.view);
  const std::vector<float> x = RandomValues(kRows * kIn, 3);
  auto reference = CreateReferenceBackend();
  const auto want = Product(*reference, stacked, WeightFormat::kQ4, x);
  double largest = 0;
  for (const float v : want)
    largest = std::max(largest, std::fabs(static_cast<double>(v)));
  for (const cpu::SimdLevel level : cpu::AvailableSimdLevels()) {
    SCOPED_TRACE(cpu::NameOf(level));
    auto backend = CpuBackendAt(level, 2);
    EXPECT_THAT(Product(*backend, stacked, WeightFormat::kQ4, x),
                testing::NearRef(want, 1e-5, 1e-5 * largest));
  }
}

// A file of 4 bits gives the same in both formats, up to the order of
// roundings.
TEST(GroupLinear, FourBitsAreWorthWhatTheyAreInEight) {
  const TestMatrix w = RandomMatrix(DType::kQ4_1, 48, 320, 7);
  const std::vector<float> x = RandomValues(4 * 320, 8);
  auto backend = CpuBackendAt(cpu::DetectSimdLevel(), 1);
  const auto eight = Product(*backend, {&w.view, 1}, WeightFormat::kQ8, x);
  const auto four = Product(*backend, {&w.view, 1}, WeightFormat::kQ4, x);
  EXPECT_THAT(four, testing::NearRef(eight, 1e-4, 1e-4));
  auto q8 = backend->LoadLinear({&w.view, 1}, WeightFormat::kQ8).value();
  auto q4 = backend->LoadLinear({&w.view, 1}, WeightFormat::kQ4).value();
  EXPECT_EQ(q8->bytes() * 5, q4->bytes() * 9);
}

// With fused multiply-adds, the instructions do not show in the bits.
TEST(GroupLinear, LevelsWithFmaAgreeBitForBit) {
  const TestMatrix w = RandomMatrix(DType::kQ4_1, 83, 352, 17);
  const std::vector<float> x = RandomValues(7 * 352, 18);
  for (const WeightFormat format : {WeightFormat::kQ8, WeightFormat::kQ4}) {
    SCOPED_TRACE(NameOf(format));
    std::string first;
    for (const cpu::SimdLevel level : cpu::AvailableSimdLevels()) {
      if (level == cpu::SimdLevel::kScalar) continue;
      SCOPED_TRACE(cpu::NameOf(level));
      auto backend = CpuBackendAt(level, 1);
      const auto bits = BitsOf(Product(*backend, {&w.view, 1}, format, x));
      if (first.empty()) first = bits;
      EXPECT_EQ(bits, first);
    }
  }
}

#if KF_X86_LEVELS
// The pool picks VNNI where there is VNNI: what it replaces gives the same.
TEST(GroupLinear, VnniChangesNoBit) {
  __builtin_cpu_init();
  if (!__builtin_cpu_supports("avx512vnni")) GTEST_SKIP() << "no VNNI here";
  constexpr int64_t kGroups = 5;
  constexpr int64_t kPanels = 9;
  constexpr int64_t kRows = 7;
  const std::vector<float> x = RandomValues(kRows * kGroups * cpu::kGroup, 5);
  std::vector<std::byte> rows(kRows * kGroups * cpu::kGroupRowBytes);
  for (int64_t r = 0; r < kRows; ++r) {
    cpu::avx512_vnni::kGroupKernels.quantize_row(
        x.data() + r * kGroups * cpu::kGroup, kGroups * cpu::kGroup,
        rows.data() + r * kGroups * cpu::kGroupRowBytes);
  }
  for (const bool four : {false, true}) {
    const int64_t step = four ? cpu::kGroupBytes4 : cpu::kGroupBytes8;
    // Any quants, with halfs below 1 as scales.
    std::vector<std::byte> panels(
        static_cast<size_t>(kPanels * kGroups * step));
    for (size_t i = 0; i < panels.size(); ++i) {
      const uint32_t random = MixBits(static_cast<uint32_t>(i) + 77);
      const bool quants = static_cast<int64_t>(i) % step < step - 64;
      panels[i] = static_cast<std::byte>(quants ? random : random & 0x3B);
    }
    std::string bits[2];
    for (const bool vnni : {false, true}) {
      const cpu::GroupKernels& kernels =
          vnni ? cpu::avx512_vnni::kGroupKernels : cpu::avx512::kGroupKernels;
      std::vector<float> out(kRows * kPanels * 16);
      (four ? kernels.linear_q4
            : kernels.linear_q8)({.panels = panels.data(),
                                  .panel_bytes = kGroups * step,
                                  .steps = kGroups,
                                  .x = rows.data(),
                                  .x_row_bytes = kGroups * cpu::kGroupRowBytes,
                                  .rows = kRows,
                                  .out = out.data(),
                                  .out_stride = kPanels * 16,
                                  .columns = kPanels * 16,
                                  .add = false,
                                  .widened = nullptr});
      bits[vnni ? 1 : 0] = BitsOf(out);
      EXPECT_NE(out[0], 0.0F);
    }
    EXPECT_EQ(bits[0], bits[1]) << (four ? "4 bits" : "8 bits");
  }
}
#endif

// Values at the ends of what is rounded: the smallest, the largest, ties.
TEST(GroupLinear, RoundsEdgeValuesAsTheReferenceDoes) {
  constexpr int64_t kIn = 96;
  std::vector<float> x(kIn, 0.0F);
  x[0] = 127.0F;  // a group whose scale is 1: ties of halves
  for (int64_t i = 1; i < 32; ++i) {
    x[static_cast<size_t>(i)] = static_cast<float>(i) * 0.5F - 8.0F;
  }
  x[33] = 1e-37F;  // too small: a group of zeros
  x[64] = 3e38F;   // the sum does not overflow
  x[65] = -1e38F;
  const TestMatrix w = RandomMatrix(DType::kQ8_0, 20, kIn, 6);
  auto reference = CreateReferenceBackend();
  const auto want = Product(*reference, {&w.view, 1}, WeightFormat::kQ8, x);
  for (const cpu::SimdLevel level : cpu::AvailableSimdLevels()) {
    SCOPED_TRACE(cpu::NameOf(level));
    auto backend = CpuBackendAt(level, 1);
    EXPECT_THAT(Product(*backend, {&w.view, 1}, WeightFormat::kQ8, x),
                testing::NearRef(want, 1e-6, 1e-30));
  }
}

// Against products in f32, on weights that the format holds exactly: what is
// left is the rounding of activations, 1 / 254 of a group's largest.
TEST(GroupLinear, ErrorIsThatOfTheActivations) {
  constexpr int64_t kIn = 576;
  const TestMatrix w = RandomMatrix(DType::kQ4_1, 64, kIn, 90);
  const std::vector<float> x = RandomValues(kIn, 91);
  auto backend = CpuBackendAt(cpu::DetectSimdLevel(), 1);
  const auto exact = Product(*backend, {&w.view, 1}, WeightFormat::kF32, x);
  const auto got = Product(*backend, {&w.view, 1}, WeightFormat::kQ4, x);
  std::vector<float> values(64 * kIn);
  Dequantize(w.view.type, w.view.data, 64 * kIn, values.data());
  for (int64_t j = 0; j < 64; ++j) {
    double limit = 1e-4;
    for (int64_t first = 0; first < kIn; first += 32) {
      double largest = 0;
      double weights = 0;
      for (int64_t i = first; i < first + 32; ++i) {
        largest = std::max(
            largest, std::fabs(static_cast<double>(x[static_cast<size_t>(i)])));
        weights += std::fabs(
            static_cast<double>(values[static_cast<size_t>(j * kIn + i)]));
      }
      limit += largest / 254 * weights;
    }
    const auto index = static_cast<size_t>(j);
    ASSERT_NEAR(static_cast<double>(got[index]),
                static_cast<double>(exact[index]), limit)
        << j;
  }
  EXPECT_NE(BitsOf(got), BitsOf(exact));
}

}  // namespace
}  // namespace kf
