// Products of many rows: the bits of a row are those it has alone, however many
// rows and threads there are, and the feed-forward part has those of its three
// operations.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "tests/kernels/dense_test_util.h"
#include "tests/testing/matchers.h"

namespace kf {
namespace {

using testing::IsOk;

// Around a block's shortest batch, its steps of 32, and its longest, 256.
constexpr int64_t kRowCounts[] = {63,  64,  65,  96,  97,  127, 128,
                                  129, 160, 200, 256, 257, 300, 513};
constexpr int64_t kMostRows = 513;
constexpr int kThreadCounts[] = {1, 2, 5};

class RowBlockTest : public ::testing::TestWithParam<
                         std::tuple<cpu::SimdLevel, WeightFormat>> {
 protected:
  std::unique_ptr<Backend> Create(int threads) {
    return CpuBackendAt(std::get<0>(GetParam()), threads);
  }
  std::unique_ptr<LinearWeights> Load(Backend& backend, const TestMatrix& w) {
    return backend.LoadLinear({&w.view, 1}, std::get<1>(GetParam())).value();
  }
};
INSTANTIATE_TEST_SUITE_P(
    Levels,
    RowBlockTest,
    ::testing::Combine(::testing::ValuesIn(cpu::AvailableSimdLevels()),
                       ::testing::ValuesIn({WeightFormat::kF32,
                                            WeightFormat::kBF16})),
    [](const auto& p) {
      return std::string(cpu::NameOf(std::get<0>(p.param))) + "_" +
             NameOf(std::get<1>(p.param));
    });

// A last panel that is not whole, without and with a neighbour, and one alone.
TEST_P(RowBlockTest, ProductsOfEveryBatchSizeAndThreadCount) {
  constexpr int64_t kIn = 96;
  const std::vector<float> x = RandomValues(kMostRows * kIn, 1);
  for (const int64_t out : {203, 217, 16, 5}) {
    const TestMatrix w = RandomMatrix(DType::kF32, out, kIn, 2);
    const std::vector<float> before = RandomValues(kMostRows * out, 3);
    std::vector<float> want(before.size());
    auto one = Create(1);
    auto packed = Load(*one, w);
    for (int64_t row = 0; row < kMostRows; ++row) {
      ASSERT_THAT(one->Linear(*packed, x.data() + row * kIn, 1,
                              want.data() + row * out),
                  IsOk());
    }
    for (const int threads : kThreadCounts) {
      auto backend = Create(threads);
      auto weights = Load(*backend, w);
      for (const int64_t rows : kRowCounts) {
        std::vector<float> got = before;
        ASSERT_THAT(backend->Linear(*weights, x.data(), rows, got.data()),
                    IsOk());
        std::vector<float> sum = before;
        ASSERT_THAT(backend->LinearAdd(*weights, x.data(), rows, sum.data()),
                    IsOk());
        for (size_t i = 0; i < before.size(); ++i) {
          const bool in = std::cmp_less(i, rows * out);
          ASSERT_EQ(got[i], in ? want[i] : before[i])
              << rows << " rows of " << out << ", element " << i;
          ASSERT_EQ(sum[i], in ? before[i] + want[i] : before[i])
              << rows << " rows of " << out << ", element " << i;
        }
      }
    }
  }
}

struct FfnShape {
  int64_t hidden;
  int64_t ffn;
};

class FeedForwardTest : public RowBlockTest {
 protected:
  // inout of rows that go one by one through the three operations.
  std::vector<float> Alone(const FfnShape& shape,
                           const TestMatrix& gate_up,
                           const TestMatrix& down,
                           std::span<const float> x,
                           std::vector<float> inout) {
    auto backend = Create(1);
    auto first = Load(*backend, gate_up);
    auto second = Load(*backend, down);
    const auto [hidden, ffn] = shape;
    std::vector<float> products(static_cast<size_t>(2 * ffn));
    std::vector<float> activated(static_cast<size_t>(ffn));
    const int64_t rows = std::ssize(x) / hidden;
    for (int64_t row = 0; row < rows; ++row) {
      EXPECT_THAT(
          backend->Linear(*first, x.data() + row * hidden, 1, products.data()),
          IsOk());
      EXPECT_THAT(backend->SwiGlu(products.data(), 1, ffn, activated.data()),
                  IsOk());
      EXPECT_THAT(backend->LinearAdd(*second, activated.data(), 1,
                                     inout.data() + row * hidden),
                  IsOk());
    }
    return inout;
  }
  void Run(Backend& backend,
           const FfnShape& shape,
           const TestMatrix& gate_up,
           const TestMatrix& down,
           std::span<const float> x,
           int64_t rows,
           float* inout) {
    auto first = Load(backend, gate_up);
    auto second = Load(backend, down);
    std::vector<float> products(static_cast<size_t>(rows * 2 * shape.ffn));
    std::vector<float> activated(static_cast<size_t>(rows * shape.ffn));
    ASSERT_THAT(backend.FeedForward({.gate_up = *first,
                                     .down = *second,
                                     .x = x.data(),
                                     .rows = rows,
                                     .inout = inout,
                                     .products = products.data(),
                                     .activated = activated.data()}),
                IsOk());
  }
};
INSTANTIATE_TEST_SUITE_P(
    Levels,
    FeedForwardTest,
    ::testing::Combine(::testing::ValuesIn(cpu::AvailableSimdLevels()),
                       ::testing::ValuesIn({WeightFormat::kBF16})),
    [](const auto& p) {
      return std::string(cpu::NameOf(std::get<0>(p.param)));
    });

// Shapes of whole steps, and some that are not.
TEST_P(FeedForwardTest, HasTheBitsOfItsThreeOperations) {
  for (const FfnShape& shape : {FfnShape{64, 96}, FfnShape{96, 32},
                                FfnShape{32, 48}, FfnShape{33, 64}}) {
    const auto [hidden, ffn] = shape;
    SCOPED_TRACE(::testing::Message() << hidden << " x " << ffn);
    const TestMatrix gate_up = RandomMatrix(DType::kF32, 2 * ffn, hidden, 4);
    const TestMatrix down = RandomMatrix(DType::kF32, hidden, ffn, 5);
    const std::vector<float> x = RandomValues(kMostRows * hidden, 6);
    const std::vector<float> before = RandomValues(kMostRows * hidden, 7);
    const std::vector<float> want = Alone(shape, gate_up, down, x, before);
    EXPECT_NE(BitsOf(want), BitsOf(before));
    for (const int threads : kThreadCounts) {
      auto backend = Create(threads);
      for (const int64_t rows : kRowCounts) {
        std::vector<float> got = before;
        Run(*backend, shape, gate_up, down, x, rows, got.data());
        for (size_t i = 0; i < before.size(); ++i) {
          const bool in = std::cmp_less(i, rows * hidden);
          ASSERT_EQ(got[i], in ? want[i] : before[i])
              << rows << " rows, " << threads << " threads, element " << i;
        }
      }
    }
  }
}

// A neighbour that went wrong does not spread.
TEST_P(FeedForwardTest, BadRowsStayAlone) {
  constexpr FfnShape kShape = {64, 96};
  constexpr int64_t kRows = 200;
  const TestMatrix gate_up = RandomMatrix(DType::kF32, 192, 64, 4);
  const TestMatrix down = RandomMatrix(DType::kF32, 64, 96, 5);
  std::vector<float> x = RandomValues(kRows * kShape.hidden, 6);
  const std::vector<float> before(x.size(), 1.0F);
  const std::vector<float> want = Alone(kShape, gate_up, down, x, before);
  x[3 * 64 + 5] = std::numeric_limits<float>::quiet_NaN();
  x[70 * 64 + 63] = std::numeric_limits<float>::quiet_NaN();
  auto backend = Create(2);
  std::vector<float> got = before;
  Run(*backend, kShape, gate_up, down, x, kRows, got.data());
  for (size_t i = 0; i < got.size(); ++i) {
    const size_t row = i / 64;
    if (row == 3 || row == 70) {
      EXPECT_TRUE(std::isnan(got[i])) << i;
    } else {
      ASSERT_EQ(got[i], want[i]) << "row " << row;
    }
  }
}

}  // namespace
}  // namespace kf
