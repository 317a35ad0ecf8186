// Linear products of every SIMD level against the reference backend.
#include <gtest/gtest.h>

#include <cmath>

#include "kernels/ref/ref_backend.h"
#include "tests/kernels/dense_test_util.h"
#include "tests/testing/matchers.h"

namespace kf {
namespace {

using testing::IsOk;

// Of the sum of the absolute products: f32 sums of up to 1,536 terms against
// sums in double.
constexpr double kSumTolerance = 4e-6;

struct Case {
  int64_t rows, out, in;
};
void PrintTo(const Case& c, std::ostream* os) {
  *os << c.rows << " rows, " << c.out << " x " << c.in;
}

// Around the edges of panels (16), stripes (64, 128), register tiles (6, 16 and
// 32 rows), pairs, groups (32), and blocks (96 rows).
constexpr Case kCases[] = {
    {1, 1, 1},     {1, 16, 2},     {2, 15, 3},    {3, 17, 15},   {4, 63, 16},
    {5, 64, 17},   {6, 65, 31},    {7, 127, 63},  {8, 128, 64},  {9, 129, 65},
    {11, 16, 576}, {12, 40, 1536}, {13, 576, 96}, {1, 1100, 33}, {3, 1040, 64},
    {95, 20, 32},  {96, 64, 31},   {97, 80, 33},  {200, 48, 65}, {15, 48, 64},
    {16, 33, 62},  {17, 47, 66},   {31, 32, 96},  {32, 17, 94},  {33, 49, 98},
};

class LinearTest : public ::testing::TestWithParam<WeightFormat> {
 protected:
  std::unique_ptr<Backend> reference_ = CreateReferenceBackend();
};
INSTANTIATE_TEST_SUITE_P(Formats,
                         LinearTest,
                         ::testing::ValuesIn(kWeightFormats),
                         [](const auto& p) { return NameOf(p.param); });

// Of a weight that the file holds in f32.
int64_t MinBytes(WeightFormat format) {
  if (format == WeightFormat::kF32) return 4;
  return format == WeightFormat::kBF16 ? 2 : 1;
}

// Products of absolute values: what an element's error is measured by.
std::vector<float> Magnitudes(Backend& reference,
                              const LinearWeights& absolute,
                              std::vector<float> x,
                              int64_t rows) {
  for (float& v : x) v = std::fabs(v);
  std::vector<float> out(static_cast<size_t>(rows * absolute.out()));
  EXPECT_THAT(reference.Linear(absolute, x.data(), rows, out.data()), IsOk());
  return out;
}

void ExpectNear(const std::vector<float>& got,
                const std::vector<float>& want,
                const std::vector<float>& magnitude) {
  double largest = 0;
  for (size_t i = 0; i < want.size(); ++i) {
    const double limit =
        kSumTolerance * static_cast<double>(magnitude[i]) + 1e-30;
    const double apart =
        std::fabs(static_cast<double>(got[i]) - static_cast<double>(want[i]));
    ASSERT_TRUE(apart <= limit) << "element " << i << ": " << got[i]
                                << ", want " << want[i] << ", limit " << limit;
    largest = std::max(largest, std::fabs(static_cast<double>(want[i])));
  }
  EXPECT_GT(largest, 1e-2);  // a test of zeros would prove nothing
}

TEST_P(LinearTest, AgreesWithReferenceAtTileEdges) {
  for (const Case& c : kCases) {
    SCOPED_TRACE(::testing::PrintToString(c));
    TestMatrix w = RandomMatrix(DType::kF32, c.out, c.in, 11);
    auto ref_w = reference_->LoadLinear({&w.view, 1}, GetParam()).value();
    // A small bias keeps a 1 x 1 product away from zero.
    std::vector<float> x = RandomValues(c.rows * c.in, 5);
    for (float& v : x) v += 0.25F;
    std::vector<float> want(static_cast<size_t>(c.rows * c.out));
    ASSERT_THAT(reference_->Linear(*ref_w, x.data(), c.rows, want.data()),
                IsOk());
    for (const cpu::SimdLevel level : cpu::AvailableSimdLevels()) {
      SCOPED_TRACE(cpu::NameOf(level));
      auto backend = CpuBackendAt(level, 2);
      auto packed = backend->LoadLinear({&w.view, 1}, GetParam()).value();
      EXPECT_EQ(packed->in(), c.in);
      EXPECT_EQ(packed->out(), c.out);
      EXPECT_GE(packed->bytes(),
                static_cast<size_t>(c.in * c.out * MinBytes(GetParam())));
      // One value beyond the end must stay as it is.
      std::vector<float> got(want.size() + 1, -77.0F);
      ASSERT_THAT(backend->Linear(*packed, x.data(), c.rows, got.data()),
                  IsOk());
      EXPECT_EQ(got.back(), -77.0F);
      got.pop_back();

      TestMatrix absolute = w;
      std::vector<float> values(static_cast<size_t>(c.out * c.in));
      std::memcpy(values.data(), w.bytes.data(), w.bytes.size());
      for (float& v : values) v = std::fabs(v);
      std::memcpy(absolute.bytes.data(), values.data(), w.bytes.size());
      absolute.view.data = absolute.bytes.data();
      auto abs_w =
          reference_->LoadLinear({&absolute.view, 1}, GetParam()).value();
      ExpectNear(got, want, Magnitudes(*reference_, *abs_w, x, c.rows));
    }
  }
}

// Exact: each weight is packed where it belongs, whatever its type.
TEST_P(LinearTest, StacksAndUnpacksEveryType) {
  constexpr int64_t kIn = 1280;  // five 256-blocks, more than one chunk
  const DType types[] = {DType::kF32,  DType::kF16,  DType::kBF16, DType::kQ8_0,
                         DType::kQ4_0, DType::kQ4_1, DType::kQ5_0, DType::kQ5_1,
                         DType::kQ4_K, DType::kQ5_K, DType::kQ6_K};
  std::vector<TestMatrix> matrices;
  std::vector<WeightView> stacked;
  stacked.reserve(std::size(types));
  uint32_t seed = 100;
  for (const DType type : types) {
    matrices.push_back(RandomMatrix(type, 5, kIn, seed += 10));
  }
  for (const TestMatrix& m : matrices) stacked.push_back(m.view);
  auto ref_w = reference_->LoadLinear(stacked, GetParam()).value();
  // Row c of the input is the unit vector of a column in each block.
  const int64_t columns[] = {0, 1, 255, 256, 1023, 1024, 1025, 1279};
  const auto rows = static_cast<int64_t>(std::size(columns));
  std::vector<float> x(static_cast<size_t>(rows * kIn));
  for (int64_t r = 0; r < rows; ++r) {
    x[static_cast<size_t>(r * kIn + columns[r])] = 1.0F;
  }
  std::vector<float> want(static_cast<size_t>(rows * ref_w->out()));
  ASSERT_THAT(reference_->Linear(*ref_w, x.data(), rows, want.data()), IsOk());
  EXPECT_NE(want[0], 0.0F);
  for (const cpu::SimdLevel level : cpu::AvailableSimdLevels()) {
    SCOPED_TRACE(cpu::NameOf(level));
    auto backend = CpuBackendAt(level, 3);
    auto packed = backend->LoadLinear(stacked, GetParam()).value();
    std::vector<float> got(want.size());
    ASSERT_THAT(backend->Linear(*packed, x.data(), rows, got.data()), IsOk());
    if (GetParam() == WeightFormat::kQ8 || GetParam() == WeightFormat::kQ4) {
      // Scale and minimum are multiplied apart.
      EXPECT_THAT(got, testing::NearRef(want, 1e-6, 1e-6));
    } else {
      // Subnormals may be flushed, hence an absolute limit below them.
      EXPECT_THAT(got, testing::NearRef(want, 0.0, 1.2e-38));
    }
  }
}

// What lies behind a panel's end in memory is another's, and none of its sums'.
TEST_P(LinearTest, WeightsThatAreNanSpoilTheirOwnColumnsAlone) {
  constexpr int64_t kRows = 5;
  constexpr int64_t kIn = 45;
  constexpr int64_t kOut = 48;
  TestMatrix w = RandomMatrix(DType::kF32, kOut, kIn, 3);
  TestMatrix clean = w;
  clean.view.data = clean.bytes.data();
  std::vector<float> values(static_cast<size_t>(kOut * kIn));
  std::memcpy(values.data(), w.bytes.data(), w.bytes.size());
  std::fill(values.begin() + 16 * kIn, values.begin() + 32 * kIn,
            std::nanf(""));
  std::memcpy(w.bytes.data(), values.data(), w.bytes.size());
  w.view.data = w.bytes.data();
  const std::vector<float> x = RandomValues(kRows * kIn, 4);
  for (const cpu::SimdLevel level : cpu::AvailableSimdLevels()) {
    SCOPED_TRACE(cpu::NameOf(level));
    auto backend = CpuBackendAt(level, 1);
    std::vector<float> want(static_cast<size_t>(kRows * kOut));
    std::vector<float> got(want.size());
    auto packed = backend->LoadLinear({&clean.view, 1}, GetParam()).value();
    ASSERT_THAT(backend->Linear(*packed, x.data(), kRows, want.data()), IsOk());
    packed = backend->LoadLinear({&w.view, 1}, GetParam()).value();
    ASSERT_THAT(backend->Linear(*packed, x.data(), kRows, got.data()), IsOk());
    for (size_t i = 0; i < got.size(); ++i) {
      const size_t column = i % kOut;
      if (column >= 16 && column < 32) continue;
      EXPECT_EQ(got[i], want[i]) << i;
    }
  }
}

TEST_P(LinearTest, AddsTheResidualOnce) {
  constexpr int64_t kRows = 7;
  const TestMatrix w = RandomMatrix(DType::kF32, 70, 45, 3);
  const std::vector<float> x = RandomValues(kRows * 45, 4);
  const std::vector<float> before = RandomValues(kRows * 70, 8);
  for (const cpu::SimdLevel level : cpu::AvailableSimdLevels()) {
    SCOPED_TRACE(cpu::NameOf(level));
    auto backend = CpuBackendAt(level, 2);
    auto packed = backend->LoadLinear({&w.view, 1}, GetParam()).value();
    std::vector<float> product(before.size());
    ASSERT_THAT(backend->Linear(*packed, x.data(), kRows, product.data()),
                IsOk());
    std::vector<float> sum = before;
    ASSERT_THAT(backend->LinearAdd(*packed, x.data(), kRows, sum.data()),
                IsOk());
    for (size_t i = 0; i < sum.size(); ++i) {
      ASSERT_EQ(sum[i], before[i] + product[i]) << i;
    }
  }
}

TEST_P(LinearTest, NoRowsWriteNothing) {
  const TestMatrix w = RandomMatrix(DType::kF32, 4, 4, 3);
  auto backend = CpuBackendAt(cpu::DetectSimdLevel(), 2);
  auto packed = backend->LoadLinear({&w.view, 1}, GetParam()).value();
  float untouched = 5.0F;
  EXPECT_THAT(backend->Linear(*packed, nullptr, 0, &untouched), IsOk());
  EXPECT_EQ(untouched, 5.0F);
}

}  // namespace
}  // namespace kf
