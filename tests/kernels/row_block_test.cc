// Products of many rows: the bits of a row are those it has alone, however many
// rows and threads there are, and the feed-forward part has those of its three
// operations.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <tuple>

#include "kernels/core/thread_pool.h"
#include "kernels/cpu/dense_dispatch.h"
#include "kernels/cpu/row_blocks.h"
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
// Rows [0, rows) of `got` are those of `want`, bit for bit; the rest is
// `before`.
void ExpectRows(std::span<const float> got,
                std::span<const float> want,
                std::span<const float> before,
                int64_t rows,
                int64_t width) {
  const auto end = static_cast<size_t>(rows * width);
  const auto columns = static_cast<size_t>(width);
  for (size_t at = 0; at < got.size(); at += columns) {
    ASSERT_EQ(BitsOf(got.subspan(at, columns)),
              BitsOf((at < end ? want : before).subspan(at, columns)))
        << "row " << at / columns << " of " << rows;
  }
}

class ProductsTest : public RowBlockTest {
 protected:
  void Run(int64_t out,
           int64_t in,
           std::span<const int> thread_counts,
           std::span<const int64_t> row_counts) {
    SCOPED_TRACE(::testing::Message() << out << " x " << in);
    const int64_t most =
        *std::max_element(row_counts.begin(), row_counts.end());
    const std::vector<float> x = RandomValues(most * in, 1);
    const TestMatrix w = RandomMatrix(DType::kF32, out, in, 2);
    const std::vector<float> before = RandomValues(most * out, 3);
    std::vector<float> want(before.size());
    auto one = Create(1);
    auto packed = Load(*one, w);
    for (int64_t row = 0; row < most; ++row) {
      ASSERT_THAT(
          one->Linear(*packed, x.data() + row * in, 1, want.data() + row * out),
          IsOk());
    }
    std::vector<float> added = before;
    for (size_t i = 0; i < added.size(); ++i) added[i] += want[i];
    for (const int threads : thread_counts) {
      SCOPED_TRACE(::testing::Message() << threads << " threads");
      auto backend = Create(threads);
      auto weights = Load(*backend, w);
      for (const int64_t rows : row_counts) {
        std::vector<float> got = before;
        ASSERT_THAT(backend->Linear(*weights, x.data(), rows, got.data()),
                    IsOk());
        ExpectRows(got, want, before, rows, out);
        got = before;
        ASSERT_THAT(backend->LinearAdd(*weights, x.data(), rows, got.data()),
                    IsOk());
        ExpectRows(got, added, before, rows, out);
        if (HasFatalFailure()) return;
      }
    }
  }
};
INSTANTIATE_TEST_SUITE_P(
    Levels,
    ProductsTest,
    ::testing::Combine(::testing::ValuesIn(cpu::AvailableSimdLevels()),
                       ::testing::Values(WeightFormat::kF32,
                                         WeightFormat::kBF16)),
    [](const auto& p) {
      return std::string(cpu::NameOf(std::get<0>(p.param))) + "_" +
             NameOf(std::get<1>(p.param));
    });

// A last panel that is not whole, without and with a neighbour, and one alone.
TEST_P(ProductsTest, EveryBatchSizeAndThreadCount) {
  for (const int64_t out : {203, 217, 16, 5}) {
    Run(out, 96, kThreadCounts, kRowCounts);
  }
}

// Blocks that are shorter, K that they do not take, and K that is not whole.
TEST_P(ProductsTest, LongAndOddRows) {
  constexpr int kThreads[] = {1, 2};
  constexpr int64_t kRows[] = {200, 300};
  for (const int64_t in : {4096, 5152, 100}) Run(40, in, kThreads, kRows);
}

// Which calls the blocks take; the kernels are not called.
TEST(RowBlocks, ShapesTaken) {
  ThreadPool pool(2);
  cpu::ScratchArena scratch;
  const cpu::RowBlockKernels kernels = {};
  const cpu::LinearContext with = {cpu::DenseKernelsOf(cpu::SimdLevel::kScalar),
                                   cpu::GroupKernelsOf(cpu::SimdLevel::kScalar),
                                   &kernels, pool, scratch};
  const cpu::LinearContext without = {with.dense, with.groups, nullptr, pool,
                                      scratch};
  const auto load = [&](int64_t out, int64_t in, WeightFormat format) {
    const TestMatrix w = RandomMatrix(DType::kF32, out, in, 2);
    return cpu::PackedLinear::Create({&w.view, 1}, format, pool).value();
  };
  const auto takes = [&](int64_t in, int64_t rows, WeightFormat format) {
    const auto w = load(16, in, format);
    EXPECT_FALSE(cpu::TakesRowBlocks(without, {.weights = *w, .rows = rows}));
    return cpu::TakesRowBlocks(with, {.weights = *w, .rows = rows});
  };
  EXPECT_TRUE(takes(64, 64, WeightFormat::kBF16));
  EXPECT_TRUE(takes(5120, 512, WeightFormat::kBF16));
  EXPECT_FALSE(takes(64, 63, WeightFormat::kBF16));
  EXPECT_FALSE(takes(5152, 512, WeightFormat::kBF16));
  EXPECT_FALSE(takes(80, 512, WeightFormat::kBF16));
  EXPECT_FALSE(takes(64, 512, WeightFormat::kF32));
  EXPECT_FALSE(takes(64, 512, WeightFormat::kQ8));
  const auto gated = [&](int64_t hidden, int64_t ffn, int64_t rows) {
    const auto gate_up = load(2 * ffn, hidden, WeightFormat::kBF16);
    const auto down = load(hidden, ffn, WeightFormat::kBF16);
    const cpu::GatedArgs args = {
        .gate_up = *gate_up, .down = *down, .rows = rows};
    EXPECT_FALSE(cpu::TakesGated(without, args));
    return cpu::TakesGated(with, args);
  };
  EXPECT_TRUE(gated(64, 96, 256));
  EXPECT_FALSE(gated(64, 96, 255));  // of two threads
  EXPECT_TRUE(gated(64, 5056, 256));
  EXPECT_FALSE(gated(64, 5088, 256));
  EXPECT_FALSE(gated(48, 64, 256));
  EXPECT_FALSE(gated(64, 48, 256));
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
                       ::testing::Values(WeightFormat::kBF16)),
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
        ExpectRows(got, want, before, rows, hidden);
        if (HasFatalFailure()) return;
      }
    }
  }
}

// A neighbour that went wrong does not spread.
TEST_P(FeedForwardTest, BadRowsStayAlone) {
  constexpr FfnShape kShape = {64, 96};
  constexpr int64_t kRows = 300;
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
      ASSERT_EQ(BitsOf({&got[i], 1}), BitsOf({&want[i], 1})) << "row " << row;
    }
  }
}

}  // namespace
}  // namespace kf
