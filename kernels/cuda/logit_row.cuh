// Device code: passes over a row of logits, with the bits of
// engine/sampling/logit_row.cc. Products and sums are written apart, so that
// none is fused.
#pragma once

#include <cfloat>
#include <cstdint>

#include "kernels/cuda/block_reduce.cuh"
#include "kernels/cuda/gpu.h"
#include "kernels/cuda/warp.cuh"

namespace kf::cuda {

inline constexpr int kRowThreads = 512;
inline constexpr int kRowWarps = kRowThreads / kWarp;
inline constexpr int32_t kSumBlock = 512;  // of a row's weights

__device__ inline float MulAdd(float a, float b, float c) {
  return __fadd_rn(__fmul_rn(a, b), c);
}

// exp(x), x <= 0; 0 below e^-86 and of NaN (Cephes' expf).
__device__ inline float RowExp(float x) {
  constexpr float kShift = 0x1.8p23F;  // rounds to the nearest integer
  const float shifted = MulAdd(x, 1.44269504F, kShift);
  const float n = __fsub_rn(shifted, kShift);
  const float r = __fadd_rn(__fsub_rn(x, __fmul_rn(n, 0.693359375F)),
                            __fmul_rn(n, 2.12194440e-4F));
  float p = MulAdd(r, 1.9875691500e-4F, 1.3981999507e-3F);
  p = MulAdd(p, r, 8.3334519073e-3F);
  p = MulAdd(p, r, 4.1665795894e-2F);
  p = MulAdd(p, r, 1.6666665459e-1F);
  p = MulAdd(p, r, 5.0000001201e-1F);
  p = __fadd_rn(MulAdd(p, __fmul_rn(r, r), r), 1.0F);
  const uint32_t bits = __float_as_uint(p) + (__float_as_uint(shifted) << 23);
  return x >= -86.0F ? __uint_as_float(bits) : 0.0F;
}

struct RowScan {
  float largest;
  int32_t best;  // the smallest id that has it
  bool bad;
};

// Called by all threads, each of which gets the result. Starts and ends with
// barriers of its own.
__device__ inline RowScan ScanRow(const float* x, int32_t count) {
  KF_GPU_SHARED(float[kRowWarps], largest);
  KF_GPU_SHARED(int32_t[kRowWarps], best);
  float own = -INFINITY;
  int32_t id = INT32_MAX;
  bool bad = false;
  for (auto i = static_cast<int32_t>(threadIdx.x); i < count;
       i += kRowThreads) {
    bad = bad || !(x[i] <= FLT_MAX);
    if (x[i] > own) {
      own = x[i];
      id = i;
    }
  }
  for (int distance = kWarp / 2; distance > 0; distance /= 2) {
    const float other = __shfl_xor_sync(kAllLanes, own, distance);
    const int32_t other_id = __shfl_xor_sync(kAllLanes, id, distance);
    if (other > own || (other == own && other_id < id)) {
      own = other;
      id = other_id;
    }
  }
  if (threadIdx.x % kWarp == 0) {
    largest[threadIdx.x / kWarp] = own;
    best[threadIdx.x / kWarp] = id;
  }
  const bool any_bad = __syncthreads_or(bad ? 1 : 0) != 0;
  RowScan scan = {-INFINITY, INT32_MAX, any_bad};
  for (int w = 0; w < kRowWarps; ++w) {
    if (largest[w] > scan.largest ||
        (largest[w] == scan.largest && best[w] < scan.best)) {
      scan.largest = largest[w];
      scan.best = best[w];
    }
  }
  scan.bad = scan.bad || scan.largest == -INFINITY;
  __syncthreads();  // the warps' results are read
  return scan;
}

// The sums of (lane / 2)'s chain and of (lane % 2)'s half, lanes below 8, put
// together: (0 + 1) + (2 + 3) of each half, then the halves.
__device__ inline double ChainTotal(double sum) {
  sum = __dadd_rn(sum, __shfl_xor_sync(kAllLanes, sum, 2));
  sum = __dadd_rn(sum, __shfl_xor_sync(kAllLanes, sum, 4));
  return __dadd_rn(sum, __shfl_xor_sync(kAllLanes, sum, 1));
}

// Where a lane's two elements of sixteen are: of its chain's four, the half's
// first and the one two further.
__device__ inline int32_t ChainPlace(int32_t lane) {
  return lane % 8 / 2 * 4 + lane % 2;
}

// A warp sums `count` floats in double, sixteen at a time, then the rest one by
// one. Every lane gets the result.
__device__ inline double WarpRowSum(const float* x,
                                    int32_t count,
                                    int32_t lane) {
  const int32_t place = ChainPlace(lane);
  double sum = 0.0;
  int32_t i = 0;
  for (; i + 16 <= count; i += 16) {
    sum = __dadd_rn(sum, __dadd_rn(static_cast<double>(x[i + place]),
                                   static_cast<double>(x[i + place + 2])));
  }
  double total = ChainTotal(sum);
  for (; i < count; ++i) total = __dadd_rn(total, static_cast<double>(x[i]));
  return total;
}

}  // namespace kf::cuda
