// The promise on which cuBLASLt is used: a row's bits do not depend on how many
// rows there are, nor on its place among them; and results are those of our own
// products within rounding. On a GPU with the real library and models' shapes,
// in emulation with the fake.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <iostream>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "kernels/cuda/compare_bits.h"
#include "kernels/cuda/cuda_backend.h"
#include "tests/cuda/device_array.h"
#include "tests/testing/matchers.h"

#if defined(KF_CUDA_EMULATION)
#include "tests/cuda/fake_library.h"
#endif

namespace kf::testing {
namespace {

struct Shape {
  int64_t in, out;
};

#if defined(KF_CUDA_EMULATION)
constexpr Shape kShapes[] = {{24, 19}};
constexpr int64_t kMostRows = 140;
#else
// Llama-8B's, SmolLM2-135M's, and an odd number of outputs.
constexpr Shape kShapes[] = {{4096, 6144},  {4096, 4096},   {4096, 28672},
                             {14336, 4096}, {4096, 128256}, {576, 960},
                             {576, 576},    {576, 3072},    {1536, 576},
                             {576, 49152},  {576, 50257}};
constexpr int64_t kMostRows = 2100;
#endif

// Cheap, and the same everywhere: weights are up to half a thousand million.
std::vector<float> Values(int64_t count, uint32_t seed) {
  std::vector<float> values(static_cast<size_t>(count));
  uint32_t state = seed;
  for (float& value : values) {
    state = state * 1664525U + 1013904223U;
    const auto unit = static_cast<float>(state >> 8) * 0x1p-23F - 1.0F;
    value = unit * static_cast<float>(1U << (state >> 29));
  }
  return values;
}

class Product {
 public:
  Product(Backend& backend, const Shape& shape, const WeightView& w)
      : backend_(backend), shape_(shape) {
    auto loaded = backend.LoadLinear({&w, 1}, WeightFormat::kBF16);
    EXPECT_THAT(loaded, IsOk());
    if (loaded.ok()) weights_ = *std::move(loaded);
  }

  // y = rows [first, first + rows) of x, or y +=.
  void Run(const gpu::DeviceArray<float>& x,
           int64_t first,
           int64_t rows,
           bool add,
           gpu::DeviceArray<float>& y) {
    const float* const from = x.data() + first * shape_.in;
    if (add) {
      // As bytes: 0.747.
      cudaMemset(y.data(), 0x3f,
                 static_cast<size_t>(rows * shape_.out) * sizeof(float));
      cudaDeviceSynchronize();  // no order with the backend's stream
    }
    EXPECT_THAT(add ? backend_.LinearAdd(*weights_, from, rows, y.data())
                    : backend_.Linear(*weights_, from, rows, y.data()),
                IsOk());
    EXPECT_THAT(backend_.Download({}, nullptr), IsOk());  // waits
  }

 private:
  Backend& backend_;
  const Shape shape_;
  std::unique_ptr<LinearWeights> weights_;
};

std::vector<int64_t> RowCounts() {
  std::vector<int64_t> counts;
  for (int64_t rows = 1; rows <= 66; ++rows) counts.push_back(rows);
  for (const int64_t rows : {96, 127, 128, 129, 192, 255, 256, 257, 511, 512,
                             1000, 1024, 2047, 2048}) {
    if (rows <= kMostRows) counts.push_back(rows);
  }
  return counts;
}

class CublasLtRows : public ::testing::TestWithParam<Shape> {
 protected:
  static std::unique_ptr<Backend> Create(const std::string& path) {
    auto backend = CreateCudaBackend({.name = "cuda", .cublaslt_path = path});
    EXPECT_THAT(backend, IsOk());
    return backend.ok() ? *std::move(backend) : nullptr;
  }
};

TEST_P(CublasLtRows, KeepTheirBitsInEveryBatch) {
  const Shape shape = GetParam();
#if defined(KF_CUDA_EMULATION)
  ResetFake();
  const auto backend = Create(FakePath());
#else
  const auto backend = Create("");
#endif
  ASSERT_NE(backend, nullptr);
  if (backend->description().find("cuBLASLt") == std::string::npos) {
    GTEST_SKIP() << backend->notice();
  }
  const std::vector<float> values = Values(shape.in * shape.out, 1);
  const WeightView w = {DType::kF32, shape.out, shape.in,
                        reinterpret_cast<const std::byte*>(values.data())};
  Product product(*backend, shape, w);
  std::cout << backend->notice() << "\n";

  const gpu::DeviceArray<float> x(Values(kMostRows * shape.in, 2));
  const auto outputs = static_cast<size_t>(kMostRows * shape.out);
  gpu::DeviceArray<float> all(outputs);
  gpu::DeviceArray<float> some(outputs);
  gpu::DeviceArray<uint32_t> differing(1);
  differing.Upload({0});
  for (const bool add : {false, true}) {
    product.Run(x, 0, kMostRows, add, all);
    for (const int64_t rows : RowCounts()) {
      for (const int64_t first : {int64_t{0}, kMostRows - rows}) {
        product.Run(x, first, rows, add, some);
        cuda::CompareBits(nullptr, some.data(), all.data() + first * shape.out,
                          rows * shape.out, differing.data());
        ASSERT_EQ(differing.Download()[0], 0U)
            << "rows " << first << " + " << rows << (add ? ", added" : "");
      }
    }
  }

  const auto own = Create("none");
  ASSERT_NE(own, nullptr);
  constexpr int64_t kCompared = 70;
  Product other(*own, shape, w);
  other.Run(x, 0, kCompared, true, some);
  product.Run(x, 0, kCompared, true, all);
  const std::vector<float> got = all.Download();
  const std::vector<float> want = some.Download();
  // The size of what cancels: sums of `in` products of values around 20.
  const double scale = 400.0 * std::sqrt(static_cast<double>(shape.in));
  double worst = 0.0;
  for (size_t i = 0; i < static_cast<size_t>(kCompared * shape.out); ++i) {
    ASSERT_FALSE(std::isnan(got[i]));
    worst = std::max(worst, std::abs(static_cast<double>(got[i]) -
                                     static_cast<double>(want[i])));
  }
  EXPECT_LT(worst, 1e-4 * scale);
}
INSTANTIATE_TEST_SUITE_P(Shapes,
                         CublasLtRows,
                         ::testing::ValuesIn(kShapes),
                         [](const ::testing::TestParamInfo<Shape>& shape) {
                           return std::to_string(shape.param.in) + "To" +
                                  std::to_string(shape.param.out);
                         });

}  // namespace
}  // namespace kf::testing
