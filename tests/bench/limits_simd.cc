#include "kernels/cpu/vec.h"
#include "tests/bench/limits_kernels.h"

namespace kf::cpu::KF_SIMD_NS {
namespace {

// Enough accumulators to hide the latency, few enough for the registers.
constexpr int kAccumulators = KF_SIMD_LEVEL >= 2 ? 24 : 12;
constexpr int kStreams = 8;

// Makes the compiler believe that the value is used.
template <typename T>
inline void Keep(T& value) {
#if defined(__x86_64__)
  asm volatile("" : "+v"(value));
#else
  asm volatile("" : "+m"(value));
#endif
}

// Unrolled by pragma: an accumulator has to be a register. Kept at the start,
// since equal accumulators would be merged into one.
int64_t FmaF32(int64_t rounds) {
  VF acc[kAccumulators] = {};
#pragma GCC unroll 24
  for (int i = 0; i < kAccumulators; ++i) Keep(acc[i]);
  VF a = Set(0.5F);
  Keep(a);
  for (int64_t round = 0; round < rounds; ++round) {
#pragma GCC unroll 24
    for (int i = 0; i < kAccumulators; ++i) acc[i] = Fma(acc[i], a, a);
  }
#pragma GCC unroll 24
  for (int i = 0; i < kAccumulators; ++i) Keep(acc[i]);
  return rounds * kAccumulators * kLanes * 2;
}

int64_t DotPairs(int64_t rounds) {
  VF acc[kAccumulators] = {};
#pragma GCC unroll 24
  for (int i = 0; i < kAccumulators; ++i) Keep(acc[i]);
  VU a = SetBits(0x3F003F00U);
  Keep(a);
  for (int64_t round = 0; round < rounds; ++round) {
#pragma GCC unroll 24
    for (int i = 0; i < kAccumulators; ++i) acc[i] = DotBf16(acc[i], a, a);
  }
#pragma GCC unroll 24
  for (int i = 0; i < kAccumulators; ++i) Keep(acc[i]);
  return rounds * kAccumulators * kLanes * 4;
}

void Read(const void* from, int64_t bytes) {
  const int64_t stream = bytes / kStreams / 64 * 64;
  const char* p = static_cast<const char*>(from);
  VU sum[kStreams] = {};
  for (int64_t i = 0; i < stream; i += kVecBytes) {
#pragma GCC unroll 8
    for (int s = 0; s < kStreams; ++s) sum[s] ^= LoadBits(p + s * stream + i);
  }
#pragma GCC unroll 8
  for (int s = 0; s < kStreams; ++s) Keep(sum[s]);
}

}  // namespace

extern const LimitKernels kLimitKernels;
const LimitKernels kLimitKernels = {
    .fma_f32 = FmaF32, .dot_bf16 = DotPairs, .read = Read};

}  // namespace kf::cpu::KF_SIMD_NS
