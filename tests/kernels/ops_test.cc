// Normalisation, activation, embedding and memory of the CPU backend, at every
// SIMD level, against the reference.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/ref/ref_backend.h"
#include "tests/kernels/dense_test_util.h"
#include "tests/testing/matchers.h"

namespace kf {
namespace {

using testing::IsOk;
using testing::NearRef;
using testing::StatusIs;

// Around vector lengths (4, 8, 16), four of them, and a real model's width.
constexpr int64_t kWidths[] = {1, 3, 4, 5, 15, 16, 17, 31, 33, 63, 64, 65, 576};

class OpsTest : public ::testing::TestWithParam<cpu::SimdLevel> {
 protected:
  std::unique_ptr<Backend> reference_ = CreateReferenceBackend();
  std::unique_ptr<Backend> cpu_ = CpuBackendAt(GetParam(), 2);
};
INSTANTIATE_TEST_SUITE_P(Levels,
                         OpsTest,
                         ::testing::ValuesIn(cpu::AvailableSimdLevels()),
                         [](const auto& p) {
                           return std::string(cpu::NameOf(p.param));
                         });

TEST_P(OpsTest, RmsNorm) {
  for (const int64_t width : kWidths) {
    for (const int64_t rows : {1, 5, 70}) {
      SCOPED_TRACE(::testing::Message() << rows << " x " << width);
      std::vector<float> x = RandomValues(rows * width, 1);
      const std::vector<float> weight = RandomValues(width, 2);
      std::vector<float> want(x.size());
      ASSERT_THAT(reference_->RmsNorm(x.data(), weight.data(), 1e-5F, rows,
                                      width, want.data()),
                  IsOk());
      EXPECT_GT(*std::max_element(want.begin(), want.end()), -1.0F);
      // In place, which the decoder does not do but the contract allows.
      ASSERT_THAT(
          cpu_->RmsNorm(x.data(), weight.data(), 1e-5F, rows, width, x.data()),
          IsOk());
      EXPECT_THAT(x, NearRef(want, 2e-6, 1e-12));
    }
  }
}

TEST_P(OpsTest, RmsNormOfZerosAndHugeValues) {
  const std::vector<float> weight(20, 2.0F);
  std::vector<float> out(20, 1.0F);
  const std::vector<float> zeros(20, 0.0F);
  ASSERT_THAT(
      cpu_->RmsNorm(zeros.data(), weight.data(), 1e-5F, 1, 20, out.data()),
      IsOk());
  EXPECT_EQ(out, zeros);
  const std::vector<float> huge(20, 1e15F);
  ASSERT_THAT(
      cpu_->RmsNorm(huge.data(), weight.data(), 1e-5F, 1, 20, out.data()),
      IsOk());
  EXPECT_THAT(out, NearRef(weight, 1e-5, 0.0));
}

// Squares that no float holds, and values that no number holds: in a vector, in
// the last partial one.
TEST_P(OpsTest, RmsNormNeverHidesWhatIsNotFinite) {
  constexpr int64_t kWidth = 131;
  constexpr float kInf = std::numeric_limits<float>::infinity();
  const std::vector<float> weight = RandomValues(kWidth, 2);
  const auto both = [&](const std::vector<float>& x) {
    std::vector<std::vector<float>> outs;
    for (Backend* backend : {reference_.get(), cpu_.get()}) {
      std::vector<float> out(x.size());
      EXPECT_THAT(backend->RmsNorm(x.data(), weight.data(), 1e-5F, 1, kWidth,
                                   out.data()),
                  IsOk());
      outs.push_back(out);
    }
    return outs;
  };
  for (const size_t place : {size_t{0}, size_t{63}, size_t{128}, size_t{130}}) {
    SCOPED_TRACE(place);
    for (const float huge : {1.9e19F, -1e30F, 3.4e38F}) {
      SCOPED_TRACE(huge);
      std::vector<float> x = RandomValues(kWidth, 1);
      x[place] = huge;
      const auto outs = both(x);
      EXPECT_GT(std::abs(outs[0][place]), 0.0F);
      EXPECT_THAT(outs[1], NearRef(outs[0], 2e-6, 1e-12));
    }
    for (const float bad : {kInf, -kInf, std::nanf("")}) {
      SCOPED_TRACE(bad);
      std::vector<float> x = RandomValues(kWidth, 1);
      x[place] = bad;
      for (const std::vector<float>& out : both(x)) {
        EXPECT_TRUE(std::all_of(out.begin(), out.end(),
                                [](float v) { return std::isnan(v); }));
      }
    }
  }
}

// None, one, and enough of different lengths that all threads take some.
TEST_P(OpsTest, CopyRows) {
  constexpr int64_t kWidth = 576;
  for (const int threads : {1, 2, 5}) {
    const auto cpu = CpuBackendAt(GetParam(), threads);
    for (const int64_t count : {0, 1, 40}) {
      SCOPED_TRACE(::testing::Message() << threads << ", " << count);
      std::vector<RowCopy> copies;
      int64_t rows = 0;
      for (int64_t i = 0; i < count; ++i) rows += 1 + i % 16;
      const std::vector<float> from = RandomValues(rows * kWidth, 1);
      std::vector<float> to(from.size());
      std::vector<float> want(from.size());
      // From the end of one to the beginning of the other.
      int64_t at = 0;
      for (int64_t i = 0; i < count; ++i) {
        const int64_t length = 1 + i % 16;
        const int64_t target = rows - at - length;
        copies.push_back(
            {from.data() + at * kWidth, to.data() + target * kWidth, length});
        std::copy_n(from.data() + at * kWidth, length * kWidth,
                    want.data() + target * kWidth);
        at += length;
      }
      ASSERT_THAT(cpu->CopyRows(copies, kWidth), IsOk());
      EXPECT_EQ(BitsOf(to), BitsOf(want));
    }
  }
}

TEST_P(OpsTest, SwiGlu) {
  for (const int64_t width : kWidths) {
    for (const int64_t rows : {1, 3, 40}) {
      SCOPED_TRACE(::testing::Message() << rows << " x " << width);
      const std::vector<float> x = RandomValues(rows * 2 * width, 6);
      std::vector<float> want(static_cast<size_t>(rows * width));
      ASSERT_THAT(reference_->SwiGlu(x.data(), rows, width, want.data()),
                  IsOk());
      std::vector<float> got(want.size() + 1, -77.0F);
      ASSERT_THAT(cpu_->SwiGlu(x.data(), rows, width, got.data()), IsOk());
      EXPECT_EQ(got.back(), -77.0F);
      got.pop_back();
      EXPECT_THAT(got, NearRef(want, 2e-6, 1e-12));
    }
  }
}

TEST_P(OpsTest, SwiGluOverTheWholeRange) {
  std::vector<float> gates = {-1e30F, -1000.0F, -104.0F, -90.0F, -88.0F,
                              -87.0F, -10.0F,   -1e-3F,  0.0F,   1e-30F,
                              0.5F,   10.0F,    87.0F,   89.0F,  1e30F};
  for (int i = 0; i < 4380; ++i) {
    gates.push_back(-30.0F + 0.0137F * static_cast<float>(i));
  }
  const auto width = static_cast<int64_t>(gates.size());
  std::vector<float> x = gates;
  x.resize(gates.size() * 2, 1.0F);
  std::vector<float> want(gates.size());
  std::vector<float> got(gates.size());
  ASSERT_THAT(reference_->SwiGlu(x.data(), 1, width, want.data()), IsOk());
  ASSERT_THAT(cpu_->SwiGlu(x.data(), 1, width, got.data()), IsOk());
  // Far below zero e^-x saturates: -1e30 / 2e38 instead of zero.
  EXPECT_THAT(got, NearRef(want, 1e-6, 1e-8));
  x[0] = std::numeric_limits<float>::quiet_NaN();
  ASSERT_THAT(cpu_->SwiGlu(x.data(), 1, width, got.data()), IsOk());
  EXPECT_TRUE(std::isnan(got[0]));
}

TEST_P(OpsTest, EmbedReadsRowsOfEveryType) {
  const DType types[] = {DType::kF32,  DType::kF16,  DType::kBF16, DType::kQ8_0,
                         DType::kQ4_0, DType::kQ4_1, DType::kQ5_0, DType::kQ5_1,
                         DType::kQ4_K, DType::kQ5_K, DType::kQ6_K};
  const std::vector<int32_t> ids = {6, 0, 3, 3, 5};
  for (const DType type : types) {
    SCOPED_TRACE(NameOf(type));
    const TestMatrix m = RandomMatrix(type, 7, 512, 9);
    std::vector<float> all(7 * 512);
    Dequantize(type, m.bytes.data(), 7 * 512, all.data());
    auto table = cpu_->LoadEmbedding(m.view).value();
    std::vector<float> out(ids.size() * 512);
    ASSERT_THAT(cpu_->Embed(*table, ids, out.data()), IsOk());
    for (size_t i = 0; i < ids.size(); ++i) {
      const auto row = static_cast<size_t>(ids[i]) * 512;
      EXPECT_EQ(BitsOf(std::span(out).subspan(i * 512, 512)),
                BitsOf(std::span(all).subspan(row, 512)));
    }
  }
}

TEST_P(OpsTest, RowsDoNotDependOnTheBatch) {
  constexpr int64_t kWidth = 577;
  constexpr int64_t kRows = 100;
  const std::vector<float> x = RandomValues(kRows * 2 * kWidth, 4);
  const std::vector<float> weight = RandomValues(2 * kWidth, 2);
  std::vector<float> norms(x.size());
  std::vector<float> acts(kRows * kWidth);
  ASSERT_THAT(cpu_->RmsNorm(x.data(), weight.data(), 1e-6F, kRows, 2 * kWidth,
                            norms.data()),
              IsOk());
  ASSERT_THAT(cpu_->SwiGlu(x.data(), kRows, kWidth, acts.data()), IsOk());
  auto alone = CpuBackendAt(GetParam(), 1);
  for (const int64_t row : {0L, 1L, 57L, kRows - 1}) {
    std::vector<float> one(2 * kWidth);
    const float* from = x.data() + row * 2 * kWidth;
    ASSERT_THAT(
        alone->RmsNorm(from, weight.data(), 1e-6F, 1, 2 * kWidth, one.data()),
        IsOk());
    EXPECT_EQ(BitsOf(one),
              BitsOf(std::span(norms).subspan(
                  static_cast<size_t>(row * 2 * kWidth), 2 * kWidth)));
    one.resize(kWidth);
    ASSERT_THAT(alone->SwiGlu(from, 1, kWidth, one.data()), IsOk());
    EXPECT_EQ(BitsOf(one), BitsOf(std::span(acts).subspan(
                               static_cast<size_t>(row * kWidth), kWidth)));
  }
}

TEST_P(OpsTest, BuffersAreAlignedAndCopied) {
  for (const size_t bytes :
       {size_t{0}, size_t{1}, size_t{100}, size_t{5} << 20}) {
    auto buffer = cpu_->Allocate(bytes, "a test").value();
    EXPECT_EQ(buffer->bytes(), bytes);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(buffer->data()) % 64, 0U);
    const std::vector<std::byte> from(bytes, std::byte{42});
    ASSERT_THAT(cpu_->Upload(buffer->data(), from), IsOk());
    std::vector<std::byte> to(bytes);
    ASSERT_THAT(cpu_->Download(to, buffer->data()), IsOk());
    EXPECT_EQ(to, from);
  }
}

TEST_P(OpsTest, AbsurdSizesAreAnError) {
  for (const size_t bytes : {size_t{1} << 50, SIZE_MAX - 3, SIZE_MAX}) {
    EXPECT_THAT(cpu_->Allocate(bytes, "the cache"),
                StatusIs(absl::StatusCode::kResourceExhausted, "the cache: "));
    EXPECT_THAT(
        cpu_->Allocate(bytes, "the cache"),
        StatusIs(absl::StatusCode::kResourceExhausted, std::to_string(bytes)));
  }
}

}  // namespace
}  // namespace kf
