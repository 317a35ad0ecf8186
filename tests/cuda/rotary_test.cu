// The angles of the rotary embedding against the library's, in double.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <vector>

#include "kernels/cuda/rotary.cuh"
#include "tests/cuda/device_array.h"

namespace kf::cuda {
namespace {

__global__ void CosSinKernel(const double* angles, float2* out, int32_t count) {
  const auto i = static_cast<int32_t>(blockIdx.x * blockDim.x + threadIdx.x);
  if (i < count) out[i] = CosSin(angles[i]);
}

// Positions up to a million, at every frequency of a head of 128 channels; and
// angles beside multiples of a quarter turn, where a reduction loses digits.
std::vector<double> Angles() {
  std::vector<double> angles;
  for (const int position : {0, 1, 2, 3, 7, 100, 4095, 65537, 1000003}) {
    for (int i = 0; i < 128; i += 2) {
      angles.push_back(position * std::pow(10000.0, -i / 128.0));
    }
  }
  for (int quarter = 0; quarter < 9; ++quarter) {
    const double at = quarter * std::acos(0.0);
    for (const double beside : {-1e-3, -1e-9, 0.0, 1e-9, 1e-3}) {
      if (at + beside >= 0.0) angles.push_back(at + beside);
    }
  }
  return angles;
}

TEST(Rotary, CosSinRoundToTheLibrarys) {
  const std::vector<double> angles = Angles();
  const auto count = static_cast<int32_t>(angles.size());
  const gpu::DeviceArray<double> device_angles(angles);
  gpu::DeviceArray<float2> out(angles.size());
  gpu::launch(nullptr, static_cast<unsigned>((count + 63) / 64), 64, 0,
              CosSinKernel, device_angles.data(), out.data(), count);
  const std::vector<float2> got = out.Download();
  for (size_t i = 0; i < angles.size(); ++i) {
    EXPECT_FLOAT_EQ(got[i].x, static_cast<float>(std::cos(angles[i])));
    EXPECT_FLOAT_EQ(got[i].y, static_cast<float>(std::sin(angles[i])));
    const double square = std::pow(static_cast<double>(got[i].x), 2) +
                          std::pow(static_cast<double>(got[i].y), 2);
    EXPECT_NEAR(square, 1.0, 2e-7) << angles[i];
  }
}

}  // namespace
}  // namespace kf::cuda
