// The fast form of Gumbel weights against the noise in double.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <vector>

#include "kernels/cuda/unit_gumbel.cuh"
#include "tests/cuda/device_array.h"

namespace kf::cuda {
namespace {

constexpr uint32_t kKeys = 20000;
constexpr NoiseRow kRow = {0x9E3779B9U, 77U};

__global__ void WeightKernel(float* weights, float* uniform) {
  const uint32_t key = blockIdx.x * blockDim.x + threadIdx.x;
  if (key >= kKeys) return;
  weights[key] = TimesUnitGumbel(2.0F, kRow, key);
  uniform[key] = NoiseUOfBits(kRow, key);
}

TEST(UnitGumbel, WeightsAreThoseOfTheNoise) {
  gpu::DeviceArray<float> weights(kKeys);
  gpu::DeviceArray<float> uniform(kKeys);
  gpu::launch(nullptr, (kKeys + 127) / 128, 128, 0, WeightKernel,
              weights.data(), uniform.data());
  const std::vector<float> got = weights.Download();
  const std::vector<float> u = uniform.Download();
  float largest = 0.0F;
  for (uint32_t key = 0; key < kKeys; ++key) {
    ASSERT_EQ(u[key], NoiseU(kRow, key));
    const double want =
        2.0 * std::exp(NoiseZeta(NoiseKind::kGumbel, kRow, key));
    // An error of 1e-5 in zeta is one of 1e-5 of its exponential.
    ASSERT_NEAR(static_cast<double>(got[key]), want, 1e-5 * want) << key;
    largest = std::fmax(largest, got[key]);
  }
  EXPECT_GT(largest, 5000.0F);  // some u near 1 was among them
}

__global__ void LogKernel(const float* x, float* log, int32_t count) {
  const auto i = static_cast<int32_t>(threadIdx.x);
  if (i < count) log[i] = LogOfNormal(x[i]);
}

TEST(UnitGumbel, LogKeepsItsRelativeAccuracyNearOne) {
  const std::vector<float> x = {
      0x1p-24F, 3 * 0x1p-24F,        0.25F,          0.70710677F, 0.70710683F,
      0.5F,     1.0F - 3 * 0x1p-24F, 1.0F - 0x1p-24F};
  const gpu::DeviceArray<float> device_x(x);
  gpu::DeviceArray<float> log(x.size());
  gpu::launch(nullptr, 1, 32, 0, LogKernel, device_x.data(), log.data(),
              static_cast<int32_t>(x.size()));
  const std::vector<float> got = log.Download();
  for (size_t i = 0; i < x.size(); ++i) {
    const double want = std::log(static_cast<double>(x[i]));
    EXPECT_NEAR(static_cast<double>(got[i]), want, -4e-7 * want) << i;
  }
}

}  // namespace
}  // namespace kf::cuda
