// A row's bits do not depend on the batch it is in, its place there, or the
// number of threads.
#include <gtest/gtest.h>

#include <limits>

#include "tests/kernels/dense_test_util.h"
#include "tests/testing/matchers.h"

namespace kf {
namespace {

using testing::IsOk;

constexpr int64_t kIn = 131;
constexpr int64_t kOut = 203;
constexpr int64_t kMaxRows = 64;

class LinearInvarianceTest : public ::testing::TestWithParam<
                                 std::tuple<cpu::SimdLevel, WeightFormat>> {
 protected:
  std::unique_ptr<LinearWeights> Load(Backend& backend) {
    return backend.LoadLinear({&w_.view, 1}, std::get<1>(GetParam())).value();
  }
  std::unique_ptr<Backend> Create(int threads) {
    return CpuBackendAt(std::get<0>(GetParam()), threads);
  }
  std::span<const float> RowOf(std::span<const float> matrix,
                               int64_t row,
                               int64_t width) {
    return matrix.subspan(static_cast<size_t>(row * width),
                          static_cast<size_t>(width));
  }
  // Each row's product on its own, one thread.
  std::vector<std::string> Alone() {
    auto backend = Create(1);
    auto packed = Load(*backend);
    std::vector<std::string> bits;
    std::vector<float> out(kOut);
    for (int64_t row = 0; row < kMaxRows; ++row) {
      EXPECT_THAT(
          backend->Linear(*packed, x_.data() + row * kIn, 1, out.data()),
          IsOk());
      bits.push_back(BitsOf(out));
    }
    return bits;
  }

  TestMatrix w_ = RandomMatrix(DType::kF32, kOut, kIn, 21);
  std::vector<float> x_ = RandomValues(kMaxRows * kIn, 22);
};
INSTANTIATE_TEST_SUITE_P(
    Levels,
    LinearInvarianceTest,
    ::testing::Combine(::testing::ValuesIn(cpu::AvailableSimdLevels()),
                       ::testing::ValuesIn(kWeightFormats)),
    [](const auto& p) {
      return std::string(cpu::NameOf(std::get<0>(p.param))) + "_" +
             NameOf(std::get<1>(p.param));
    });

TEST_P(LinearInvarianceTest, EveryBatchSizePlaceAndThreadCount) {
  const std::vector<std::string> alone = Alone();
  EXPECT_NE(alone[0], alone[1]);
  for (int threads = 1; threads <= 8; ++threads) {
    auto backend = Create(threads);
    auto packed = Load(*backend);
    for (int64_t rows = 1; rows <= kMaxRows; ++rows) {
      // Rotated, so that over the batch sizes a row is met in every place.
      const int64_t shift = (rows * 7 + threads) % kMaxRows;
      std::vector<float> x;
      for (int64_t i = 0; i < rows; ++i) {
        const auto row = RowOf(x_, (i + shift) % kMaxRows, kIn);
        x.insert(x.end(), row.begin(), row.end());
      }
      std::vector<float> out(static_cast<size_t>(rows * kOut));
      ASSERT_THAT(backend->Linear(*packed, x.data(), rows, out.data()), IsOk());
      for (int64_t i = 0; i < rows; ++i) {
        ASSERT_EQ(BitsOf(RowOf(out, i, kOut)),
                  alone[static_cast<size_t>((i + shift) % kMaxRows)])
            << threads << " threads, place " << i << " of " << rows;
      }
    }
  }
}

// Blocks of rows that overlap may store a row twice, but not add it.
TEST_P(LinearInvarianceTest, AddedOnceInEveryBatchSize) {
  constexpr int64_t kMost = 97;
  auto backend = Create(2);
  auto packed = Load(*backend);
  const std::vector<float> x = RandomValues(kMost * kIn, 23);
  const std::vector<float> before = RandomValues(kMost * kOut, 24);
  std::vector<float> product(kMost * kOut);
  ASSERT_THAT(backend->Linear(*packed, x.data(), kMost, product.data()),
              IsOk());
  for (int64_t rows = 1; rows <= kMost; ++rows) {
    std::vector<float> sum = before;
    ASSERT_THAT(backend->LinearAdd(*packed, x.data(), rows, sum.data()),
                IsOk());
    for (int64_t i = 0; i < kMost * kOut; ++i) {
      const auto at = static_cast<size_t>(i);
      const float want =
          i < rows * kOut ? before[at] + product[at] : before[at];
      ASSERT_EQ(sum[at], want) << rows << " rows, element " << i;
    }
  }
}

TEST_P(LinearInvarianceTest, RowBlocksOfPrompts) {
  const std::vector<std::string> alone = Alone();
  auto backend = Create(2);
  auto packed = Load(*backend);
  std::vector<float> x;
  for (int i = 0; i < 4; ++i) x.insert(x.end(), x_.begin(), x_.end());
  constexpr int64_t kRows = 4 * kMaxRows;
  std::vector<float> out(kRows * kOut);
  ASSERT_THAT(backend->Linear(*packed, x.data(), kRows, out.data()), IsOk());
  for (int64_t i = 0; i < kRows; ++i) {
    ASSERT_EQ(BitsOf(RowOf(out, i, kOut)),
              alone[static_cast<size_t>(i % kMaxRows)])
        << "row " << i;
  }
}

// A neighbour that went wrong does not spread.
TEST_P(LinearInvarianceTest, BadRowsStayAlone) {
  const std::vector<std::string> alone = Alone();
  auto backend = Create(2);
  auto packed = Load(*backend);
  std::vector<float> x(x_.begin(), x_.begin() + 8 * kIn);
  x[3 * kIn + 5] = std::numeric_limits<float>::quiet_NaN();
  x[6 * kIn + 1] = std::numeric_limits<float>::infinity();
  std::vector<float> out(8 * kOut);
  ASSERT_THAT(backend->Linear(*packed, x.data(), 8, out.data()), IsOk());
  for (int64_t i = 0; i < 8; ++i) {
    const auto row = RowOf(out, i, kOut);
    if (i == 3) {
      EXPECT_TRUE(std::isnan(row[0]));
    } else if (i == 6) {
      EXPECT_FALSE(std::isfinite(row[0]));
    } else {
      EXPECT_EQ(BitsOf(row), alone[static_cast<size_t>(i)]) << i;
    }
  }
}

}  // namespace
}  // namespace kf
