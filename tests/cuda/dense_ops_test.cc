// Embedding, norms and activations of the CUDA backend against the reference,
// or against the formula in double where the reference has none.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "kernels/core/bf16.h"
#include "kernels/cuda/activation.h"
#include "kernels/cuda/embedding.h"
#include "kernels/cuda/norm.h"
#include "kernels/ref/ref_backend.h"
#include "tests/cuda/device_array.h"
#include "tests/kernels/dense_test_util.h"
#include "tests/testing/matchers.h"

namespace kf::cuda {
namespace {

using gpu::DeviceArray;
using kf::testing::IsOk;
using kf::testing::NearRef;

constexpr float kEps = 1e-5F;
// Of f32 arithmetic in another order, and of a library's exp.
constexpr double kRelative = 2e-6;

// Around a warp and a block of 8 warps, and a real model's width.
constexpr int64_t kWidths[] = {1,  2,   31,  32,  33,  63,  64,
                               65, 127, 129, 255, 256, 257, 576};

std::vector<float> Reference(const std::vector<float>& x,
                             const std::vector<float>& weight,
                             int64_t rows) {
  std::vector<float> want(x.size());
  EXPECT_THAT(CreateReferenceBackend()->RmsNorm(
                  x.data(), weight.data(), kEps, rows,
                  static_cast<int64_t>(weight.size()), want.data()),
              IsOk());
  return want;
}

TEST(Norm, RmsEqualsTheReference) {
  for (const int64_t width : kWidths) {
    for (const int64_t rows : {1, 3}) {
      SCOPED_TRACE(::testing::Message() << rows << " x " << width);
      const std::vector<float> x = RandomValues(rows * width, 1);
      const std::vector<float> weight = RandomValues(width, 2);
      DeviceArray<float> device_x(x);
      const DeviceArray<float> device_weight(weight);
      RmsNorm(nullptr, {.x = device_x.data(),
                        .weight = device_weight.data(),
                        .eps = kEps,
                        .rows = rows,
                        .width = width,
                        .out = device_x.data()});
      EXPECT_THAT(device_x.Download(),
                  NearRef(Reference(x, weight, rows), kRelative, 1e-12));
    }
  }
}

// The sum is what x + add rounds to, and the norm is that of the sum.
TEST(Norm, RmsAddsTheResidualFirst) {
  constexpr int64_t kRows = 3;
  constexpr int64_t kWidth = 130;
  const std::vector<float> x = RandomValues(kRows * kWidth, 1);
  const std::vector<float> add = RandomValues(kRows * kWidth, 3);
  const std::vector<float> weight = RandomValues(kWidth, 2);
  std::vector<float> sum(x);
  for (size_t i = 0; i < sum.size(); ++i) sum[i] += add[i];
  DeviceArray<float> device_x(x);
  const DeviceArray<float> device_add(add);
  const DeviceArray<float> device_weight(weight);
  DeviceArray<float> out(x.size());
  RmsNorm(nullptr, {.x = device_x.data(),
                    .add = device_add.data(),
                    .sum = device_x.data(),
                    .weight = device_weight.data(),
                    .eps = kEps,
                    .rows = kRows,
                    .width = kWidth,
                    .out = out.data()});
  EXPECT_EQ(device_x.Download(), sum);
  EXPECT_THAT(out.Download(),
              NearRef(Reference(sum, weight, kRows), kRelative, 1e-12));
}

TEST(Norm, LayerNormEqualsTheFormula) {
  for (const int64_t width : kWidths) {
    for (const bool biased : {false, true}) {
      SCOPED_TRACE(::testing::Message() << width << (biased ? " bias" : ""));
      constexpr int64_t kRows = 2;
      std::vector<float> x = RandomValues(kRows * width, 1);
      // A mean far from 0 would cost a one-pass variance its digits.
      for (float& v : x) v += 1000.0F;
      const std::vector<float> weight = RandomValues(width, 2);
      const std::vector<float> bias = RandomValues(width, 3);
      std::vector<float> want;
      for (int64_t r = 0; r < kRows; ++r) {
        const std::vector<double> row(x.begin() + r * width,
                                      x.begin() + (r + 1) * width);
        double mean = 0.0;
        for (const double y : row) mean += y;
        mean /= static_cast<double>(width);
        double variance = 0.0;
        for (const double y : row) variance += (y - mean) * (y - mean);
        variance /= static_cast<double>(width);
        for (size_t i = 0; i < row.size(); ++i) {
          const double y =
              (row[i] - mean) / std::sqrt(variance + static_cast<double>(kEps));
          const float shift = biased ? bias[i] : 0.0F;
          want.push_back(static_cast<float>(y * static_cast<double>(weight[i]) +
                                            static_cast<double>(shift)));
        }
      }
      const DeviceArray<float> device_x(x);
      const DeviceArray<float> device_weight(weight);
      const DeviceArray<float> device_bias(bias);
      DeviceArray<float> out(x.size());
      LayerNorm(nullptr, {.x = device_x.data(),
                          .weight = device_weight.data(),
                          .bias = biased ? device_bias.data() : nullptr,
                          .eps = kEps,
                          .rows = kRows,
                          .width = width,
                          .out = out.data()});
      EXPECT_THAT(out.Download(), NearRef(want, kRelative, 1e-6));
    }
  }
}

// One bad value makes its row NaN, and no other.
TEST(Norm, NeverHidesWhatIsNotFinite) {
  constexpr int64_t kWidth = 131;
  for (const float bad : {std::numeric_limits<float>::infinity(),
                          -std::numeric_limits<float>::infinity(),
                          std::numeric_limits<float>::quiet_NaN()}) {
    for (const size_t at : {size_t{0}, size_t{64}, size_t{130}}) {
      std::vector<float> x = RandomValues(3 * kWidth, 1);
      x[kWidth + at] = bad;
      const DeviceArray<float> device_x(x);
      const DeviceArray<float> weight(RandomValues(kWidth, 2));
      for (const auto norm : {RmsNorm, LayerNorm}) {
        DeviceArray<float> out(x.size());
        norm(nullptr, {.x = device_x.data(),
                       .weight = weight.data(),
                       .eps = kEps,
                       .rows = 3,
                       .width = kWidth,
                       .out = out.data()});
        const std::vector<float> y = out.Download();
        for (size_t i = 0; i < y.size(); ++i) {
          EXPECT_EQ(std::isnan(y[i]), i / kWidth == 1) << i;
        }
      }
    }
  }
}

TEST(Norm, ARowsBitsDependOnTheRowAlone) {
  constexpr int64_t kRows = 5;
  constexpr int64_t kWidth = 300;
  const std::vector<float> x = RandomValues(kRows * kWidth, 1);
  const DeviceArray<float> device_x(x);
  const DeviceArray<float> weight(RandomValues(kWidth, 2));
  const auto run = [&](int64_t first, int64_t rows) {
    DeviceArray<float> out(static_cast<size_t>(rows * kWidth));
    RmsNorm(nullptr, {.x = device_x.data() + first * kWidth,
                      .weight = weight.data(),
                      .eps = kEps,
                      .rows = rows,
                      .width = kWidth,
                      .out = out.data()});
    return out.Download();
  };
  const std::vector<float> all = run(0, kRows);
  for (int64_t row = 0; row < kRows; ++row) {
    const auto start = all.begin() + row * kWidth;
    EXPECT_EQ(run(row, 1), std::vector<float>(start, start + kWidth));
  }
}

TEST(Activation, SwiGluEqualsTheReference) {
  for (const int64_t width : {1, 255, 1023, 1024, 1025}) {
    constexpr int64_t kRows = 2;
    std::vector<float> x = RandomValues(kRows * 2 * width, 1);
    x[0] = -200.0F;  // exp overflows
    std::vector<float> want(static_cast<size_t>(kRows * width));
    ASSERT_THAT(
        CreateReferenceBackend()->SwiGlu(x.data(), kRows, width, want.data()),
        IsOk());
    const DeviceArray<float> device_x(x);
    DeviceArray<float> out(want.size());
    SwiGlu(nullptr, device_x.data(), kRows, width, out.data());
    EXPECT_THAT(out.Download(), NearRef(want, kRelative, 1e-30)) << width;
  }
}

TEST(Activation, GeluEqualsTheFormula) {
  const std::vector<float> x = RandomValues(1500, 4);
  for (const GeluKind kind : {GeluKind::kErf, GeluKind::kTanh}) {
    std::vector<float> want;
    for (const float v : x) {
      const auto t = static_cast<double>(v);
      const double inner =
          std::sqrt(2.0 / std::acos(-1.0)) * (t + 0.044715 * t * t * t);
      want.push_back(static_cast<float>(
          0.5 * t *
          (1.0 + (kind == GeluKind::kErf ? std::erf(t / std::sqrt(2.0))
                                         : std::tanh(inner)))));
    }
    DeviceArray<float> device_x(x);
    Gelu(nullptr, kind, device_x.data(), 1500, device_x.data());
    EXPECT_THAT(device_x.Download(), NearRef(want, kRelative, 1e-6));
  }
}

TEST(Embedding, GathersRowsOfBothTypes) {
  constexpr int64_t kVocabulary = 7;
  for (const int64_t width : {1, 127, 128, 130}) {
    const std::vector<float> table = RandomValues(kVocabulary * width, 5);
    std::vector<Bf16> rounded(table.size());
    std::transform(table.begin(), table.end(), rounded.begin(), FloatToBf16);
    const std::vector<int32_t> ids = {6, 0, 3, 3};
    std::vector<float> want;
    std::vector<float> want_bf16;
    for (const int32_t id : ids) {
      for (int64_t i = 0; i < width; ++i) {
        const auto at = static_cast<size_t>(id * width + i);
        want.push_back(table[at]);
        want_bf16.push_back(Bf16ToFloat(rounded[at]));
      }
    }
    const DeviceArray<float> device_table(table);
    const DeviceArray<Bf16> device_rounded(rounded);
    const DeviceArray<int32_t> device_ids(ids);
    DeviceArray<float> out(want.size());
    Embed(nullptr, device_table.data(), device_ids.data(), 4, width,
          out.data());
    EXPECT_EQ(out.Download(), want);
    Embed(nullptr, device_rounded.data(), device_ids.data(), 4, width,
          out.data());
    EXPECT_EQ(out.Download(), want_bf16);
  }
}

}  // namespace
}  // namespace kf::cuda
