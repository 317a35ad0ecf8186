// The products of the CUDA backend against the reference, and the promise that
// a row's bits do not depend on how many rows there are.
#include "kernels/cuda/product.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "kernels/core/bf16.h"
#include "kernels/ref/ref_backend.h"
#include "tests/cuda/device_array.h"
#include "tests/kernels/dense_test_util.h"
#include "tests/testing/matchers.h"

#if defined(KF_CUDA_EMULATION)
#include "tests/cuda/emulation/machine.h"
#endif

namespace kf::cuda {
namespace {

using gpu::DeviceArray;
using kf::testing::IsOk;
using kf::testing::NearRef;

template <typename X>
std::vector<X> Rounded(const std::vector<float>& values) {
  std::vector<X> result;
  for (const float v : values) {
    if constexpr (std::is_same_v<X, float>) {
      result.push_back(v);
    } else {
      result.push_back(FloatToBf16(v));
    }
  }
  return result;
}

// One product; x [rows, in], w [out, in], y: the residual, or empty.
template <typename X>
std::vector<float> Multiply(const std::vector<float>& x,
                            const std::vector<float>& w,
                            int64_t rows,
                            const std::vector<float>& residual = {}) {
  const int64_t in = static_cast<int64_t>(x.size()) / rows;
  const int64_t out = static_cast<int64_t>(w.size()) / in;
  const DeviceArray<X> device_x(Rounded<X>(x));
  const DeviceArray<X> device_w(Rounded<X>(w));
  DeviceArray<float> y(static_cast<size_t>(rows * out));
  if (!residual.empty()) y.Upload(residual);
  Product(nullptr,
          ProductArgs<X>{.x = device_x.data(),
                         .w = device_w.data(),
                         .residual = residual.empty() ? nullptr : y.data(),
                         .y = y.data(),
                         .rows = rows,
                         .in = in,
                         .out = out});
  return y.Download();
}

std::vector<float> Reference(const std::vector<float>& x,
                             const std::vector<float>& w,
                             int64_t rows,
                             WeightFormat format,
                             std::vector<float> residual = {}) {
  const auto reference = CreateReferenceBackend();
  const int64_t in = static_cast<int64_t>(x.size()) / rows;
  const int64_t out = static_cast<int64_t>(w.size()) / in;
  const WeightView view = {DType::kF32, out, in,
                           reinterpret_cast<const std::byte*>(w.data())};
  const auto weights = reference->LoadLinear({&view, 1}, format);
  EXPECT_THAT(weights, IsOk());
  if (!residual.empty()) {
    EXPECT_THAT(
        reference->LinearAdd(**weights, x.data(), rows, residual.data()),
        IsOk());
    return residual;
  }
  std::vector<float> y(static_cast<size_t>(rows * out));
  EXPECT_THAT(reference->Linear(**weights, x.data(), rows, y.data()), IsOk());
  return y;
}

struct Shape {
  int64_t rows, in, out;
};
std::ostream& operator<<(std::ostream& stream, const Shape& shape) {
  return stream << shape.rows << " x " << shape.in << " x " << shape.out;
}

template <typename X>
void ExpectReference(const Shape& shape, WeightFormat format) {
  SCOPED_TRACE(::testing::Message() << shape);
  const std::vector<float> x = RandomValues(shape.rows * shape.in, 1);
  const std::vector<float> w = RandomValues(shape.out * shape.in, 2);
  const std::vector<float> residual = RandomValues(shape.rows * shape.out, 3);
  // Sums of `in` terms of up to 20 x 20, in f32 and in another order.
  const double tolerance = 1e-5 * static_cast<double>(shape.in + 20);
  EXPECT_THAT(Multiply<X>(x, w, shape.rows),
              NearRef(Reference(x, w, shape.rows, format), 1e-5, tolerance));
  EXPECT_THAT(
      Multiply<X>(x, w, shape.rows, residual),
      NearRef(Reference(x, w, shape.rows, format, residual), 1e-5, tolerance));
}

// Rows around what one kernel takes and the next does; depths around a step;
// columns around a block, an odd number among them.
TEST(Product, Bf16EqualsTheReference) {
  for (const Shape& shape :
       {Shape{1, 8, 1}, Shape{1, 64, 32}, Shape{15, 24, 31}, Shape{16, 56, 33},
        Shape{17, 72, 40}, Shape{32, 136, 7}, Shape{33, 32, 65},
        Shape{64, 40, 127}, Shape{65, 48, 129}, Shape{129, 200, 20},
        Shape{257, 40, 130}}) {
    ExpectReference<Bf16>(shape, WeightFormat::kBF16);
  }
  // Longer than all stages of the pipelines together.
  ExpectReference<Bf16>({2, 8 * 64 + 8, 8}, WeightFormat::kBF16);
  ExpectReference<Bf16>({40, 6 * 64 + 8, 8}, WeightFormat::kBF16);
  ExpectReference<Bf16>({70, 6 * 32 + 8, 8}, WeightFormat::kBF16);
}

TEST(Product, F32EqualsTheReference) {
  for (const Shape& shape :
       {Shape{1, 1, 1}, Shape{1, 17, 64}, Shape{15, 16, 65}, Shape{16, 33, 63},
        Shape{17, 15, 3}, Shape{65, 20, 70}}) {
    ExpectReference<float>(shape, WeightFormat::kF32);
  }
}

// Every number of rows where the kernel changes, and every place in a batch.
template <typename X>
void ExpectInvariance() {
  constexpr int64_t kRows = 260;
  constexpr int64_t kIn = 152;
  constexpr int64_t kOut = 35;
  const std::vector<float> x = RandomValues(kRows * kIn, 1);
  const std::vector<float> w = RandomValues(kOut * kIn, 2);
  const std::vector<float> all = Multiply<X>(x, w, kRows);
  for (const int64_t rows : {1, 15, 16, 17, 31, 32, 33, 64, 65, 256}) {
    for (const int64_t first : {int64_t{0}, kRows - rows}) {
      SCOPED_TRACE(::testing::Message() << first << " + " << rows);
      const std::vector<float> part(x.begin() + first * kIn,
                                    x.begin() + (first + rows) * kIn);
      const std::vector<float> want(all.begin() + first * kOut,
                                    all.begin() + (first + rows) * kOut);
      EXPECT_TRUE(BitsOf(Multiply<X>(part, w, rows)) == BitsOf(want));
    }
  }
}
TEST(Product, ARowsBitsDependOnTheRowAlone) { ExpectInvariance<Bf16>(); }
TEST(Product, ARowsBitsDependOnTheRowAloneInF32) { ExpectInvariance<float>(); }

TEST(Product, RoundsToNearestEven) {
  std::vector<float> x = RandomValues(1027, 9);
  x[3] = 1.00390625F;  // half-way, to the even neighbour below
  x[4] = 1.01171875F;  // half-way, to the even neighbour above
  const DeviceArray<float> device_x(x);
  DeviceArray<Bf16> rounded(x.size());
  RoundToBf16(nullptr, device_x.data(), 1027, rounded.data());
  EXPECT_EQ(rounded.Download(), Rounded<Bf16>(x));
}

#if defined(KF_CUDA_EMULATION)
TEST(Product, FragmentsAreReadWithoutBankConflicts) {
  emu::ResetCounters();
  for (const int64_t rows : {1, 20, 40, 70, 257}) {
    Multiply<Bf16>(RandomValues(rows * 64, 1), RandomValues(64 * 64, 2), rows);
  }
  EXPECT_GT(emu::counters().ldmatrix, 0);
  EXPECT_EQ(emu::counters().ldmatrix_conflicts, 0);
}
#endif

}  // namespace
}  // namespace kf::cuda
