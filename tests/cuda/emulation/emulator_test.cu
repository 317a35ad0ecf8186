// The emulated device language: collectives, atomics, indices, orders, limits,
// numbers.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <numeric>
#include <vector>

#include "kernels/core/bf16.h"
#include "kernels/cuda/gpu.h"
#include "tests/cuda/device_array.h"

namespace kf::emu {
namespace {

using gpu::DeviceArray;
using gpu::kFullWarp;
using gpu::launch;
using testing::Test;

// --- indices ---
__global__ void CountVisits(int* visits, dim3 grid, dim3 dim) {
  const bool equal = gridDim.x == grid.x && gridDim.y == grid.y &&
                     gridDim.z == grid.z && blockDim.x == dim.x &&
                     blockDim.y == dim.y && blockDim.z == dim.z;
  const unsigned b =
      (blockIdx.z * gridDim.y + blockIdx.y) * gridDim.x + blockIdx.x;
  const unsigned t =
      (threadIdx.z * blockDim.y + threadIdx.y) * blockDim.x + threadIdx.x;
  const unsigned threads = dim.x * dim.y * dim.z;
  visits[b * threads + t] = equal ? 1 : 2;
}

TEST(Emulator, RunsEachThreadOfEachBlockOnce) {
  const dim3 grid(2, 3, 2);
  const dim3 dim(5, 3, 4);
  DeviceArray<int> visits(std::vector<int>(12 * 60, 0));
  ResetCounters();
  launch(nullptr, grid, dim, 0, CountVisits, visits.data(), grid, dim);
  EXPECT_EQ(visits.Download(), std::vector<int>(12 * 60, 1));
  EXPECT_EQ(counters().blocks, 12);
  EXPECT_EQ(counters().switches, 12 * 60);
}

// --- warp collectives ---
struct Shuffled {
  int xor3, up2, down2, broadcast, narrow_xor, narrow_up;
  float as_float;
  double as_double;
};

__global__ void Shuffles(Shuffled* out) {
  const int t = static_cast<int>(threadIdx.x);
  Shuffled s;
  s.xor3 = __shfl_xor_sync(kFullWarp, t, 3);
  s.up2 = __shfl_up_sync(kFullWarp, t, 2);
  s.down2 = __shfl_down_sync(kFullWarp, t, 2);
  s.broadcast = __shfl_sync(kFullWarp, t, 33);  // 33 mod 32
  s.narrow_xor = __shfl_xor_sync(kFullWarp, t, 9, 8);
  s.narrow_up = __shfl_up_sync(kFullWarp, t, 3, 8);
  s.as_float = __shfl_sync(kFullWarp, static_cast<float>(t) + 0.5F, 7);
  s.as_double = __shfl_sync(kFullWarp, static_cast<double>(t) + 0.25, 9);
  out[t] = s;
}

TEST(Emulator, ShufflesAsTheProgrammingGuideSays) {
  DeviceArray<Shuffled> out(32);
  launch(nullptr, 1, 32, 0, Shuffles, out.data());
  const std::vector<Shuffled> all = out.Download();
  for (int t = 0; t < 32; ++t) {
    const Shuffled& s = all[static_cast<size_t>(t)];
    EXPECT_EQ(s.xor3, t ^ 3);
    EXPECT_EQ(s.up2, t < 2 ? t : t - 2);
    EXPECT_EQ(s.down2, t > 29 ? t : t + 2);
    EXPECT_EQ(s.broadcast, 1);
    // Groups of later lanes are out of reach, those of earlier ones are not.
    EXPECT_EQ(s.narrow_xor, (t ^ 9) < (t / 8 + 1) * 8 ? t ^ 9 : t);
    EXPECT_EQ(s.narrow_up, t % 8 < 3 ? t : t - 3);
    EXPECT_EQ(s.as_float, 7.5F);
    EXPECT_EQ(s.as_double, 9.25);
  }
}

struct Voted {
  uint32_t ballot, match, add, min_u, max_u, all_or, all_and;
  int any_none, any_one, all_but_one, all, min_i, max_i;
};

// Odd lanes vote among themselves, even lanes among themselves.
__global__ void Votes(Voted* out) {
  const int t = static_cast<int>(threadIdx.x);
  const uint32_t mask = t % 2 == 0 ? 0x55555555U : 0xAAAAAAAAU;
  const auto u = static_cast<uint32_t>(t);
  Voted v;
  if (t % 2 == 0) {
    v.ballot = __ballot_sync(0x55555555U, t < 8);
  } else {
    v.ballot = __ballot_sync(0xAAAAAAAAU, t < 4);
  }
  v.match = __match_any_sync(mask, u / 8);
  v.add = __reduce_add_sync(mask, u);
  v.min_u = __reduce_min_sync(mask, u + 7);
  v.max_u = __reduce_max_sync(mask, u);
  v.all_or = __reduce_or_sync(mask, 1U << (t / 8));
  v.all_and = __reduce_and_sync(mask, u | 16);
  v.any_none = __any_sync(mask, 0);
  v.any_one = __any_sync(mask, t < 2);
  v.all_but_one = __all_sync(mask, t > 1);
  v.all = __all_sync(mask, 1);
  v.min_i = __reduce_min_sync(mask, t - 10);
  v.max_i = __reduce_max_sync(mask, -t);
  out[t] = v;
}

TEST(Emulator, VotesAndReductionsCountTheirMaskAlone) {
  DeviceArray<Voted> out(32);
  launch(nullptr, 1, 32, 0, Votes, out.data());
  const std::vector<Voted> all = out.Download();
  for (unsigned t = 0; t < 32; ++t) {
    const Voted& v = all[t];
    const bool odd = t % 2 == 1;
    const uint32_t mine = odd ? 0xAAAAAAAAU : 0x55555555U;
    EXPECT_EQ(v.ballot, odd ? 0x0AU : 0x55U);
    EXPECT_EQ(v.match, mine & (0xFFU << (t / 8 * 8)));
    EXPECT_EQ(v.add, odd ? 256U : 240U);
    EXPECT_EQ(v.min_u, odd ? 8U : 7U);
    EXPECT_EQ(v.max_u, odd ? 31U : 30U);
    EXPECT_EQ(v.all_or, 0xFU);
    EXPECT_EQ(v.all_and, odd ? 17U : 16U);
    EXPECT_EQ(v.any_none, 0);
    EXPECT_EQ(v.any_one, 1);
    EXPECT_EQ(v.all_but_one, 0);
    EXPECT_EQ(v.all, 1);
    EXPECT_EQ(v.min_i, odd ? -9 : -10);
    EXPECT_EQ(v.max_i, odd ? -1 : 0);
  }
}

__global__ void BarrierVotes(int* out) {
  const int t = static_cast<int>(threadIdx.x);
  const int count = __syncthreads_count(t % 3 == 0);
  const int any = __syncthreads_or(t == 77);
  const int none = __syncthreads_or(0);
  const int all = __syncthreads_and(1);
  const int not_all = __syncthreads_and(t != 5);
  out[t] = count * 10000 + any * 1000 + none * 100 + all * 10 + not_all;
}

TEST(Emulator, BarriersCount) {
  DeviceArray<int> out(100);
  launch(nullptr, 1, 100, 0, BarrierVotes, out.data());
  EXPECT_EQ(out.Download(), std::vector<int>(100, 341010));
}

// --- atomics ---
__global__ void Atomics(int* i, unsigned* u, unsigned long long* wide) {
  const int t = static_cast<int>(threadIdx.x);
  atomicAdd(&i[0], t);
  atomicMin(&i[1], -t);
  atomicMax(&i[2], t);
  atomicExch(&i[3], 9);
  atomicCAS(&i[4], 0, 1);
  atomicOr(&u[0], 1U << (t % 32));
  atomicAnd(&u[1], ~(1U << (t % 32)));
  atomicMax(&u[2], 0xFFFFFF00U + static_cast<unsigned>(t));
  const auto key = static_cast<unsigned long long>(t);
  atomicMin(&wide[0], (100 - key) << 32 | key);
  atomicAdd(&wide[1], key << 32);
}

TEST(Emulator, AtomicsOfThirtyTwoAndSixtyFourBits) {
  DeviceArray<int> i(std::vector<int>(5, 0));
  DeviceArray<unsigned> u(std::vector<unsigned>{0, ~0U, 1});
  DeviceArray<unsigned long long> wide(
      std::vector<unsigned long long>{~0ULL, 0});
  launch(nullptr, 2, 64, 0, Atomics, i.data(), u.data(), wide.data());
  EXPECT_EQ(i.Download(), (std::vector<int>{4032, -63, 63, 9, 1}));
  EXPECT_EQ(u.Download(), (std::vector<unsigned>{~0U, 0, 0xFFFFFF3FU}));
  EXPECT_EQ(wide.Download(),
            (std::vector<unsigned long long>{37ULL << 32 | 63, 4032ULL << 32}));
}

// --- orders ---
__global__ void Arrive(int* order, int* next) {
  order[atomicAdd(next, 1)] =
      static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
}

std::vector<int> ArrivalOrder() {
  DeviceArray<int> order(128);
  DeviceArray<int> next(std::vector<int>{0});
  launch(nullptr, 2, 64, 0, Arrive, order.data(), next.data());
  return order.Download();
}

class Orders : public Test {
 protected:
  ~Orders() override { options() = before_; }

 private:
  Options before_ = options();
};

TEST_F(Orders, ForwardBackwardAndRandomAreWhatTheySay) {
  std::vector<int> forward(128);
  std::iota(forward.begin(), forward.end(), 0);
  options().order = Order::kForward;
  EXPECT_EQ(ArrivalOrder(), forward);
  options().order = Order::kBackward;
  EXPECT_EQ(ArrivalOrder(), std::vector<int>(forward.rbegin(), forward.rend()));
  options().order = Order::kRandom;
  options().seed = 7;
  std::vector<int> random = ArrivalOrder();
  EXPECT_NE(random, forward);
  std::sort(random.begin(), random.end());
  EXPECT_EQ(random, forward);
}

// --- limits of a launch ---
__global__ void Nothing_() {}
__global__ void UseStatic() {
  KF_GPU_SHARED(char[64 * 1024], a);
  KF_GPU_SHARED(char[64 * 1024], b);
  a[0] = b[0] = 0;
}

TEST(Emulator, RefusesShapesThatNoDeviceTakes) {
  launch(nullptr, 1, 1025, 0, Nothing_);
  EXPECT_THAT(gpu::TakeError(), testing::HasSubstr("1025 threads a block"));
  launch(nullptr, 1, 0, 0, Nothing_);
  EXPECT_THAT(gpu::TakeError(), testing::HasSubstr("0 threads a block"));
  launch(nullptr, 0, 1, 0, Nothing_);
  EXPECT_THAT(gpu::TakeError(), testing::HasSubstr("grid (0,1,1)"));
  launch(nullptr, dim3(1, 65536, 1), 1, 0, Nothing_);
  EXPECT_THAT(gpu::TakeError(), testing::HasSubstr("grid (1,65536,1)"));
  launch(nullptr, 1, 1, 227 * 1024 + 1, Nothing_);
  EXPECT_THAT(gpu::TakeError(), testing::HasSubstr("shared memory"));
  launch(nullptr, 1, 1, 100 * 1024, UseStatic);
  EXPECT_THAT(gpu::TakeError(),
              testing::HasSubstr("233472 bytes of shared memory"));
  launch(nullptr, 1, 1, 0, Nothing_);
  EXPECT_EQ(gpu::TakeError(), "");
}

TEST(Emulator, AReportNamesLaunchBlockAndThread) {
  launch(nullptr, 1, 1, 228 * 1024, Nothing_);
  EXPECT_THAT(gpu::TakeError(), testing::HasSubstr("emulator_test.cu:"));
}

// --- shared memory ---
__global__ void ReadUnset(uint32_t* out) {
  float* dynamic = gpu::dyn_smem<float>();
  KF_GPU_SHARED(float[4], fixed);
  // Set first in one block, read unset in the next: nothing is left over.
  if (blockIdx.x == 0) {
    dynamic[0] = fixed[0] = 1.0F;
  } else {
    out[0] = __float_as_uint(dynamic[0]);
    out[1] = __float_as_uint(fixed[0]);
  }
}

TEST(Emulator, SharedMemoryOfABlockStartsAsNaN) {
  DeviceArray<uint32_t> out(2);
  launch(nullptr, 2, 1, 16, ReadUnset, out.data());
  if (std::string_view(KF_EMULATED_MODE) == "check") {
    EXPECT_THAT(gpu::TakeError(), testing::HasSubstr("unset read"));
  } else if (options().order == Order::kForward) {
    EXPECT_EQ(out.Download(), std::vector<uint32_t>(2, 0xFFFFFFFFU));
  }
}

// --- tiles ---
__global__ void LoadRows(uint32_t* out, int stride) {
  KF_GPU_SHARED(uint16_t[8 * 64], tile);
  const int lane = static_cast<int>(threadIdx.x);
  for (int i = lane; i < 512; i += 32) tile[i] = static_cast<uint16_t>(i);
  __syncwarp();
  uint32_t r[2];
  gpu::ldmatrix_x2(r, &tile[lane % 8 * stride + lane / 8 % 2 * 8]);
  out[lane] = r[0] ^ r[1];
}

TEST(Emulator, CountsBankConflictsOfLdmatrix) {
  DeviceArray<uint32_t> out(32);
  ResetCounters();
  launch(nullptr, 1, 32, 0, LoadRows, out.data(), 8);
  EXPECT_EQ(gpu::TakeError(), "");
  EXPECT_EQ(counters().ldmatrix, 2);
  EXPECT_EQ(counters().ldmatrix_conflicts, 0);  // rows of 16 bytes in sequence
  launch(nullptr, 1, 32, 0, LoadRows, out.data(), 64);
  EXPECT_EQ(gpu::TakeError(), "");
  EXPECT_EQ(counters().ldmatrix_conflicts, 14);  // 8 rows in 4 banks, twice
}

__global__ void Tail(const float* x, float* y) {
  KF_GPU_SHARED(float[4], four);
  gpu::cp_async16(four, x, threadIdx.x == 0);
  gpu::cp_async_commit();
  gpu::cp_async_wait<0>();
  for (int i = 0; i < 4; ++i) y[4 * blockIdx.x + i] = four[i];
  gpu::cp_async16(four, x, false);
  gpu::cp_async_commit();
  gpu::cp_async_wait<0>();
  for (int i = 0; i < 4; ++i) y[4 + i] = four[i];
}

TEST(Emulator, CpAsyncFillsWithZerosWhatIsNotValid) {
  const DeviceArray<float> x(std::vector<float>{1, 2, 3, 4});
  DeviceArray<float> y(8);
  launch(nullptr, 1, 1, 0, Tail, x.data(), y.data());
  EXPECT_EQ(y.Download(), (std::vector<float>{1, 2, 3, 4, 0, 0, 0, 0}));
}

// --- numbers ---
TEST(Emulator, RoundsToBf16AsTheProjectDoes) {
  for (uint32_t high = 0; high < 0x10000; high += 7) {
    for (const uint32_t low : {0U, 1U, 0x7FFFU, 0x8000U, 0x8001U, 0xFFFFU}) {
      const float f = __uint_as_float(high << 16 | low);
      if (std::isnan(f)) {
        EXPECT_EQ(__float2bfloat16(f).bits, 0x7FFF);
      } else {
        EXPECT_EQ(__float2bfloat16(f).bits, FloatToBf16(f)) << f;
        EXPECT_EQ(__bfloat162float(__float2bfloat16(f)),
                  Bf16ToFloat(FloatToBf16(f)));
      }
    }
  }
  EXPECT_EQ(gpu::bf16_low(gpu::pack_bf16(1.5F, -2.0F)), 1.5F);
  EXPECT_EQ(gpu::bf16_high(gpu::pack_bf16(1.5F, -2.0F)), -2.0F);
}

TEST(Emulator, IntegerIntrinsics) {
  EXPECT_EQ(__clz(0), 32);
  EXPECT_EQ(__clz(1), 31);
  EXPECT_EQ(__ffs(0), 0);
  EXPECT_EQ(__ffs(8), 4);
  EXPECT_EQ(__popc(0xF0F0U), 8);
  EXPECT_EQ(__brev(1U), 0x80000000U);
  EXPECT_EQ(__umulhi(0xFFFFFFFFU, 2U), 1U);
}

}  // namespace
}  // namespace kf::emu
