// Products by packed integer weights against a plain twin in f64, and against
// the bf16 product by the same values, whose bits they have.
#include "kernels/cuda/group_product.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <ostream>
#include <string>
#include <vector>

#include "kernels/core/bf16.h"
#include "kernels/core/weight_groups.h"
#include "kernels/cuda/group_tile.h"
#include "kernels/cuda/product.h"
#include "tests/cuda/device_array.h"
#include "tests/kernels/dense_test_util.h"

#if defined(KF_CUDA_EMULATION)
#include "tests/cuda/emulation/machine.h"
#endif

namespace kf::cuda {
namespace {

using gpu::DeviceArray;

// The check build looks at every load; the largest cases are the others'.
const bool kChecked = std::string(KF_EMULATED_MODE) == "check";

std::vector<Bf16> Rounded(const std::vector<float>& values) {
  std::vector<Bf16> result;
  for (const float v : values) result.push_back(FloatToBf16(v));
  return result;
}

std::vector<WeightGroup> GroupsOf(const TestMatrix& w, int64_t row, int bits) {
  const BlockLayout block = LayoutOf(w.view.type);
  std::vector<WeightGroup> groups(
      static_cast<size_t>((w.view.cols + kGroupWeights - 1) / kGroupWeights));
  ReadWeightGroups(
      w.view.type,
      w.view.data + row * (w.view.cols / block.elements * block.bytes),
      w.view.cols, bits, groups.data());
  return groups;
}

// Under 4 bits a minimum far smaller than the scale loses its last bits
// (group_unpack.cuh).
double MinimumOf(const WeightGroup& group, int bits) {
  if (bits == 8) return double{group.minimum};
  const float offset = group.minimum - 16.0F * group.scale;
  return double{offset} + 16.0 * double{group.scale};
}

// The matrix as products see it, [out, in].
std::vector<float> ValuesOf(const TestMatrix& w, int bits) {
  std::vector<float> values;
  for (int64_t row = 0; row < w.view.rows; ++row) {
    const std::vector<WeightGroup> groups = GroupsOf(w, row, bits);
    for (int64_t i = 0; i < w.view.cols; ++i) {
      const WeightGroup& group = groups[static_cast<size_t>(i / kGroupWeights)];
      const double value =
          double{group.scale} *
              (group.quants[i % kGroupWeights] - (bits == 4 ? 0 : 128)) +
          MinimumOf(group, bits);
      values.push_back(Bf16ToFloat(FloatToBf16(static_cast<float>(value))));
    }
  }
  return values;
}

std::vector<std::byte> TilesOf(const TestMatrix& w, int bits) {
  const int64_t in = w.view.cols;
  std::vector<std::byte> tiles(GroupTileBytes(bits, in, w.view.rows));
  const size_t eight = GroupTileBytes(bits, in, kGroupTileOutputs);
  for (int64_t row = 0; row < w.view.rows; ++row) {
    PackGroups(
        bits, GroupsOf(w, row, bits).data(), in, row,
        tiles.data() + static_cast<size_t>(row / kGroupTileOutputs) * eight);
  }
  return tiles;
}

// Where y lies in a larger matrix: columns [first, first + out) of `stride`.
struct Place {
  int64_t first = 0;
  int64_t stride = 0;  // 0: out
};

constexpr float kUntouched = -12345.0F;

// One product; x [rows, in], residual [rows, out] or empty. What of the larger
// matrix is no part of y has to stay as it was.
std::vector<float> Multiply(const std::vector<float>& x,
                            const TestMatrix& w,
                            int bits,
                            int64_t rows,
                            const std::vector<float>& residual = {},
                            Place place = {},
                            int64_t room_outputs = 8) {
  const int64_t in = w.view.cols;
  const int64_t out = w.view.rows;
  const int64_t stride = place.stride == 0 ? out : place.stride;
  const DeviceArray<Bf16> device_x(Rounded(x));
  const DeviceArray<std::byte> tiles(TilesOf(w, bits));
  DeviceArray<Bf16> room(static_cast<size_t>(room_outputs * in));
  std::vector<float> all(static_cast<size_t>(rows * stride), kUntouched);
  for (size_t i = 0; i < residual.size(); ++i) {
    const auto at = static_cast<int64_t>(i);
    all[static_cast<size_t>(at / out * stride + place.first + at % out)] =
        residual[i];
  }
  DeviceArray<float> y(all);
  GroupProductArgs args;
  args.x = device_x.data();
  args.tiles = tiles.data();
  args.bits = bits;
  args.residual = residual.empty() ? nullptr : y.data() + place.first;
  args.y = y.data() + place.first;
  args.rows = rows;
  args.in = in;
  args.out = out;
  args.stride = stride;
  args.room = room.data();
  args.room_outputs = room_outputs;
  GroupProduct(nullptr, args);
  all = y.Download();
  std::vector<float> result;
  int touched = 0;
  for (int64_t i = 0; i < rows * stride; ++i) {
    const int64_t column = i % stride - place.first;
    if (column >= 0 && column < out) {
      result.push_back(all[static_cast<size_t>(i)]);
    } else if (all[static_cast<size_t>(i)] != kUntouched) {
      ++touched;
    }
  }
  EXPECT_EQ(touched, 0);
  return result;
}

void ExpectTwin(const std::vector<float>& got,
                const std::vector<float>& x,
                const TestMatrix& w,
                int bits,
                int64_t rows,
                const std::vector<float>& residual = {}) {
  const std::vector<float> values = ValuesOf(w, bits);
  const int64_t in = w.view.cols;
  const int64_t out = w.view.rows;
  ASSERT_EQ(std::ssize(got), rows * out);
  int wrong = 0;
  for (int64_t i = 0; i < rows * out && wrong < 5; ++i) {
    const auto at = static_cast<size_t>(i);
    double sum = 0.0;
    double size = 0.0;
    for (int64_t k = 0; k < in; ++k) {
      const double term = double{Bf16ToFloat(FloatToBf16(
                              x[static_cast<size_t>(i / out * in + k)]))} *
                          double{values[static_cast<size_t>(i % out * in + k)]};
      sum += term;
      size += std::fabs(term);
    }
    if (!residual.empty()) sum += double{residual[at]};
    // Sums in f32, in another order.
    const double limit = 1e-5 * size + 1e-6;
    if (std::fabs(double{got[at]} - sum) <= limit) continue;
    ++wrong;
    ADD_FAILURE() << "row " << i / out << ", column " << i % out << ": "
                  << got[at] << ", want " << sum << ", limit " << limit;
  }
}

struct Shape {
  int64_t rows, in, out;
};
std::ostream& operator<<(std::ostream& stream, const Shape& shape) {
  return stream << shape.rows << " x " << shape.in << " x " << shape.out;
}

void ExpectTwin(const Shape& shape, DType type, int bits) {
  SCOPED_TRACE(::testing::Message()
               << shape << ", " << NameOf(type) << ", " << bits << " bits");
  const TestMatrix w = RandomMatrix(type, shape.out, shape.in, 2);
  const std::vector<float> x = RandomValues(shape.rows * shape.in, 1);
  const std::vector<float> residual = RandomValues(shape.rows * shape.out, 3);
  ExpectTwin(Multiply(x, w, bits, shape.rows), x, w, bits, shape.rows);
  ExpectTwin(Multiply(x, w, bits, shape.rows, residual), x, w, bits, shape.rows,
             residual);
}

// Rows around what one kernel takes and the next does; inputs around a group
// and a tile; outputs around a tile and a block, an odd number among them.
TEST(GroupProduct, EightBitsEqualTheTwin) {
  for (const Shape& shape :
       {Shape{1, 8, 1}, Shape{1, 24, 33}, Shape{15, 40, 7}, Shape{16, 64, 9},
        Shape{17, 120, 31}, Shape{32, 128, 32}, Shape{33, 136, 8},
        Shape{64, 72, 65}, Shape{65, 136, 20}, Shape{130, 40, 131}}) {
    ExpectTwin(shape, DType::kF32, 8);
  }
  ExpectTwin({3, 160, 40}, DType::kQ8_0, 8);
  ExpectTwin({3, 256, 10}, DType::kQ6_K, 8);
  // Longer than all stages of the pipeline together.
  ExpectTwin({2, 9 * 128 + 8, 8}, DType::kF32, 8);
}

TEST(GroupProduct, FourBitsEqualTheTwin) {
  for (const Shape& shape :
       {Shape{1, 32, 1}, Shape{1, 96, 33}, Shape{15, 64, 7}, Shape{16, 128, 9},
        Shape{17, 160, 31}, Shape{33, 96, 32}, Shape{64, 32, 65},
        Shape{65, 160, 20}, Shape{130, 32, 131}}) {
    ExpectTwin(shape, DType::kQ4_1, 4);
    ExpectTwin(shape, DType::kQ4_0, 4);
  }
  ExpectTwin({3, 512, 10}, DType::kQ4_K, 4);
  ExpectTwin({2, 9 * 128 + 32, 8}, DType::kQ4_1, 4);
}

// A warp then has four tiles: the last of them beyond the matrix.
TEST(GroupProduct, ManyColumns) {
  ExpectTwin({2, 32, 16384 + 13}, DType::kQ4_1, 4);
  if (kChecked) GTEST_SKIP() << "the same code, and more of it";
  ExpectTwin({2, 160, 16384 + 13}, DType::kQ4_1, 4);
  // Longer than the stages of the pipeline; rows of the two other kernels.
  ExpectTwin({18, 6 * 128 + 32, 16384 + 8}, DType::kQ4_1, 4);
  ExpectTwin({34, 160, 16384 + 8}, DType::kQ4_1, 4);
  ExpectTwin({18, 160, 16384 + 8}, DType::kF32, 8);
  ExpectTwin({2, 136, 16384 + 13}, DType::kF32, 8);
  ExpectTwin({18, 32, 16384 + 13}, DType::kQ4_0, 4);
  ExpectTwin({34, 32, 16384 + 13}, DType::kQ8_0, 8);
}

TEST(GroupProduct, ColumnsOfALargerMatrix) {
  for (const int64_t rows : {3, 70}) {
    for (const Place& place : {Place{1, 30}, Place{4, 30}, Place{7, 29}}) {
      SCOPED_TRACE(::testing::Message() << rows << " rows, " << place.first
                                        << " of " << place.stride);
      const TestMatrix w = RandomMatrix(DType::kQ4_1, 21, 64, 2);
      const std::vector<float> x = RandomValues(rows * 64, 1);
      const std::vector<float> residual = RandomValues(rows * 21, 3);
      ExpectTwin(Multiply(x, w, 4, rows, residual, place), x, w, 4, rows,
                 residual);
    }
  }
}

// Every number of rows where the kernel changes, every place in a batch, and
// weights that are unpacked in pieces of one tile or of several.
TEST(GroupProduct, ARowsBitsDependOnTheRowAlone) {
  constexpr int64_t kRows = 130;
  constexpr int64_t kOut = 35;
  for (const int bits : {4, 8}) {
    const TestMatrix w =
        RandomMatrix(bits == 4 ? DType::kQ4_1 : DType::kQ8_0, kOut, 288, 2);
    const std::vector<float> x = RandomValues(kRows * w.view.cols, 1);
    const std::vector<float> all = Multiply(x, w, bits, kRows);
    EXPECT_TRUE(BitsOf(Multiply(x, w, bits, kRows, {}, {}, 24)) == BitsOf(all));
    for (const int64_t rows : {1, 16, 17, 32, 33, 64, 65, 129}) {
      for (const int64_t first : {int64_t{0}, kRows - rows}) {
        SCOPED_TRACE(::testing::Message()
                     << bits << " bits, " << first << " + " << rows);
        const std::vector<float> part(x.begin() + first * w.view.cols,
                                      x.begin() + (first + rows) * w.view.cols);
        const std::vector<float> want(all.begin() + first * kOut,
                                      all.begin() + (first + rows) * kOut);
        EXPECT_TRUE(BitsOf(Multiply(part, w, bits, rows)) == BitsOf(want));
      }
    }
  }
}

TEST(GroupProduct, HasTheBitsOfBf16) {
  struct Case {
    DType type;
    int bits;
  };
  for (const Case& c : {Case{DType::kQ4_0, 4}, Case{DType::kQ4_0, 8},
                        Case{DType::kQ8_0, 8}, Case{DType::kQ5_1, 8}}) {
    for (const int64_t rows : {5, 40, 70}) {
      SCOPED_TRACE(::testing::Message() << NameOf(c.type) << ", " << rows);
      const TestMatrix w = RandomMatrix(c.type, 19, 224, 4);
      const std::vector<float> x = RandomValues(rows * 224, 1);
      std::vector<float> values(19 * 224);
      Dequantize(c.type, w.view.data, std::ssize(values), values.data());
      const DeviceArray<Bf16> device_x(Rounded(x));
      const DeviceArray<Bf16> device_w(Rounded(values));
      DeviceArray<float> y(static_cast<size_t>(rows * 19));
      Product(nullptr, ProductArgs<Bf16>{.x = device_x.data(),
                                         .w = device_w.data(),
                                         .y = y.data(),
                                         .rows = rows,
                                         .in = 224,
                                         .out = 19});
      EXPECT_TRUE(BitsOf(Multiply(x, w, c.bits, rows)) == BitsOf(y.Download()));
    }
  }
}

// A group that is not finite spoils its own output and no other.
TEST(GroupProduct, NotFinite) {
  constexpr int64_t kIn = 160;
  TestMatrix w = RandomMatrix(DType::kF32, 11, kIn, 2);
  const float infinite = std::numeric_limits<float>::infinity();
  std::memcpy(w.bytes.data() + (3 * kIn + 70) * sizeof(float), &infinite,
              sizeof infinite);
  for (const int64_t rows : {2, 66}) {
    const std::vector<float> x = RandomValues(rows * kIn, 1);
    const std::vector<float> got = Multiply(x, w, 8, rows);
    for (int64_t i = 0; i < std::ssize(got); ++i) {
      EXPECT_EQ(std::isnan(got[static_cast<size_t>(i)]), i % 11 == 3) << i;
    }
  }
}

TEST(GroupProduct, RoomIsBounded) {
  EXPECT_EQ(GroupRoomOutputs(64, 35), 40);          // all of them
  EXPECT_EQ(GroupRoomOutputs(4096, 28672), 8192);   // 64 MB
  EXPECT_EQ(GroupRoomOutputs(14336, 4096), 2304);   // whole tiles
  EXPECT_EQ(GroupRoomOutputs(1 << 20, 4096), 128);  // never less than one
}

#if defined(KF_CUDA_EMULATION)
TEST(GroupProduct, FragmentsAreReadWithoutBankConflicts) {
  emu::ResetCounters();
  const TestMatrix w = RandomMatrix(DType::kQ4_1, 40, 256, 2);
  for (const int64_t rows : {1, 20, 40}) {
    Multiply(RandomValues(rows * 256, 1), w, 4, rows);
  }
  EXPECT_GT(emu::counters().ldmatrix, 0);
  EXPECT_EQ(emu::counters().ldmatrix_conflicts, 0);
}
#endif

}  // namespace
}  // namespace kf::cuda
