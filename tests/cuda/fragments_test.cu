// The layouts of ldmatrix and mma fragments, element by element, against what
// the PTX ISA says of them. The emulator and the kernels rest on one reading of
// that text: this is the first test to run on a real GPU.
//
// Source: PTX ISA 9.0, "Matrix fragments for mma.m16n8k16 with floating point
// type" and "Warp-level matrix load instruction: ldmatrix".
#include <gtest/gtest.h>

#include <cstdint>
#include <vector>

#include "kernels/cuda/gpu.h"
#include "tests/cuda/device_array.h"

namespace kf::gpu {
namespace {

// Matrix i of a pattern has 100 i + 10 row + column as a 2-byte integer.
constexpr int kRows = 8;
constexpr int kColumns = 8;
constexpr int kMatrices = 4;

uint16_t Pattern(int matrix, int row, int column) {
  return static_cast<uint16_t>(100 * matrix + 10 * row + column);
}

__global__ void LdmatrixKernel(const uint4* rows,
                               uint32_t* plain4,
                               uint32_t* trans4,
                               uint32_t* plain2,
                               uint32_t* trans2) {
  KF_GPU_SHARED(uint4[32], tile);
  const int lane = static_cast<int>(threadIdx.x);
  tile[lane] = rows[lane];
  __syncthreads();
  uint32_t r4[4];
  ldmatrix_x4(r4, &tile[lane]);
  for (int j = 0; j < 4; ++j) plain4[4 * lane + j] = r4[j];
  ldmatrix_x4_trans(r4, &tile[lane]);
  for (int j = 0; j < 4; ++j) trans4[4 * lane + j] = r4[j];
  uint32_t r2[2];
  ldmatrix_x2(r2, &tile[lane % 16]);
  for (int j = 0; j < 2; ++j) plain2[2 * lane + j] = r2[j];
  ldmatrix_x2_trans(r2, &tile[lane % 16]);
  for (int j = 0; j < 2; ++j) trans2[2 * lane + j] = r2[j];
}

void ExpectFragments(const std::vector<uint32_t>& got, int count, bool trans) {
  for (int lane = 0; lane < 32; ++lane) {
    for (int j = 0; j < count; ++j) {
      const int g = lane / 4;
      const int t = 2 * (lane % 4);
      const uint32_t low = trans ? Pattern(j, t, g) : Pattern(j, g, t);
      const uint32_t high = trans ? Pattern(j, t + 1, g) : Pattern(j, g, t + 1);
      EXPECT_EQ(got[static_cast<size_t>(count * lane + j)], low | high << 16)
          << "lane " << lane << " register " << j;
    }
  }
}

TEST(Fragments, Ldmatrix) {
  std::vector<uint4> rows(kMatrices * kRows);
  for (int m = 0; m < kMatrices; ++m) {
    for (int row = 0; row < kRows; ++row) {
      uint16_t values[kColumns];
      for (int c = 0; c < kColumns; ++c) values[c] = Pattern(m, row, c);
      memcpy(&rows[static_cast<size_t>(m * kRows + row)], values,
             sizeof values);
    }
  }
  const DeviceArray<uint4> in(rows);
  DeviceArray<uint32_t> plain4(128);
  DeviceArray<uint32_t> trans4(128);
  DeviceArray<uint32_t> plain2(64);
  DeviceArray<uint32_t> trans2(64);
  launch(nullptr, 1, 32, 0, LdmatrixKernel, in.data(), plain4.data(),
         trans4.data(), plain2.data(), trans2.data());
  ExpectFragments(plain4.Download(), 4, false);
  ExpectFragments(trans4.Download(), 4, true);
  ExpectFragments(plain2.Download(), 2, false);
  ExpectFragments(trans2.Download(), 2, true);
}

// One 1 in A and one in B at a time: C must have a single 1, in its place.
struct Ones {
  int a_row, a_column, b_column;
};

__device__ float One(bool here) { return here ? 1.0F : 0.0F; }

// Fragments are filled as the PTX ISA places elements, and C is written to
// c[case][16][8] from where it says they are.
__global__ void MmaKernel(const Ones* cases, float* c) {
  const Ones ones = cases[blockIdx.x];
  const int lane = static_cast<int>(threadIdx.x);
  const int group = lane >> 2;
  const int in_group = lane % 4;
  uint32_t a[4];
  for (int r = 0; r < 4; ++r) {
    // row = group for a0, a1, a4, a5 and group + 8 else; column = in_group * 2
    // + (i & 1), + 8 for i >= 4 (i: element, two a register).
    const int row = r == 0 || r == 2 ? group : group + 8;
    const int column = in_group * 2 + (r >= 2 ? 8 : 0);
    a[r] = pack_bf16(One(row == ones.a_row && column == ones.a_column),
                     One(row == ones.a_row && column + 1 == ones.a_column));
  }
  uint32_t b[2];
  for (int r = 0; r < 2; ++r) {
    // row = in_group * 2 + (i & 1), + 8 for i >= 2; column = group.
    const int row = in_group * 2 + 8 * r;
    b[r] = pack_bf16(One(row == ones.a_column && group == ones.b_column),
                     One(row + 1 == ones.a_column && group == ones.b_column));
  }
  float sum[4] = {};
  mma_16816(sum, a, b[0], b[1]);
  for (int i = 0; i < 4; ++i) {
    const int row = i < 2 ? group : group + 8;
    const int column = in_group * 2 + (i & 1);
    c[blockIdx.x * 128 + static_cast<unsigned>(row * 8 + column)] = sum[i];
  }
}

TEST(Fragments, Mma) {
  std::vector<Ones> cases;
  for (int row = 0; row < 16; ++row) {
    for (int k = 0; k < 16; ++k) {
      for (int column = 0; column < 8; ++column) {
        cases.push_back({row, k, column});
      }
    }
  }
  const DeviceArray<Ones> in(cases);
  DeviceArray<float> out(cases.size() * 128);
  launch(nullptr, static_cast<unsigned>(cases.size()), 32, 0, MmaKernel,
         in.data(), out.data());
  const std::vector<float> c = out.Download();
  for (size_t i = 0; i < cases.size(); ++i) {
    for (int row = 0; row < 16; ++row) {
      for (int column = 0; column < 8; ++column) {
        const bool one = row == cases[i].a_row && column == cases[i].b_column;
        ASSERT_EQ(c[i * 128 + static_cast<size_t>(row * 8 + column)],
                  one ? 1.0F : 0.0F)
            << "A[" << cases[i].a_row << "][" << cases[i].a_column << "] B[.]["
            << cases[i].b_column << "]: C[" << row << "][" << column << "]";
      }
    }
  }
}

}  // namespace
}  // namespace kf::gpu
