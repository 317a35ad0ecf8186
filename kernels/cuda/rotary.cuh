// Rotary embedding and the append of one token, as prompt and decode share
// them. Device code.
//
// Angles are in double and products are never fused, as in the reference, so
// that a key rounded to bf16 has the same bits on every backend.
#pragma once

#include <cstdint>

#include "kernels/cuda/gpu.h"
#include "kernels/cuda/page_access.cuh"
#include "kernels/cuda/page_layout.h"
#include "kernels/cuda/store_pair.cuh"

namespace kf::cuda {

inline constexpr int kMaxPairs = kMaxHeadDim / 2;
inline constexpr int kAppendThreads = 128;

// {cos, sin} of an angle in [0, 2^31), to f32. The library's double functions
// would take local memory for angles that never come.
__device__ __forceinline__ float2 CosSin(double angle) {
  // angle = quarter * pi/2 + r, |r| <= pi/4; pi/2 in two parts.
  const double quarter = rint(angle * 0.63661977236758134);
  double r = fma(-quarter, 1.5707963267948966, angle);
  r = fma(-quarter, 6.123233995736766e-17, r);
  const double z = r * r;
  // Minimax polynomials of sin and cos on +-pi/4, from fdlibm.
  double s = fma(z, 1.58969099521155010221e-10, -2.50507602534068634195e-08);
  s = fma(z, s, 2.75573137070700676789e-06);
  s = fma(z, s, -1.98412698298579493134e-04);
  s = fma(z, s, 8.33333333332248946124e-03);
  s = fma(z, s, -1.66666666666666324348e-01);
  s = fma(z * r, s, r);
  double c = fma(z, -1.13596475577881948265e-11, 2.08757232129817482790e-09);
  c = fma(z, c, -2.75573143513906633035e-07);
  c = fma(z, c, 2.48015872894767294178e-05);
  c = fma(z, c, -1.38888888888741095749e-03);
  c = fma(z, c, 4.16666666666666019037e-02);
  c = fma(z * z, c, fma(z, -0.5, 1.0));
  const auto turn = static_cast<int64_t>(quarter);
  const auto x = static_cast<float>((turn & 1) != 0 ? s : c);
  const auto y = static_cast<float>((turn & 1) != 0 ? c : s);
  return make_float2(((turn + 1) & 2) != 0 ? -x : x, (turn & 2) != 0 ? -y : y);
}

// Adjacent channels (a, b), rotated.
__device__ __forceinline__ float2 RotatePair(float2 x, float2 cos_sin) {
  return make_float2(
      __fsub_rn(__fmul_rn(x.x, cos_sin.x), __fmul_rn(x.y, cos_sin.y)),
      __fadd_rn(__fmul_rn(x.x, cos_sin.y), __fmul_rn(x.y, cos_sin.x)));
}

// Shapes of a call, as PromptArgs has them.
struct AppendShape {
  PageLayout layout;
  int32_t query_heads = 0;
  int32_t rotary_dim = 0;
  const double* frequencies = nullptr;
};

// One token's row and where it goes.
struct AppendToken {
  const float* qkv = nullptr;  // [Q | K | V], 8-byte aligned
  void* queries = nullptr;     // [H, dp] T, out
  int32_t rank = 0;            // of the query: what it is rotated by
  int32_t position = 0;        // of the token
  bool rotate_keys = true;     // by `rank`; false: stored unrotated
  PageList cache;
  const int32_t* free_slot = nullptr;  // [G]: its slots; null: `position`
};

// The work of a block of kAppendThreads; `table` is shared memory.
template <typename T>
__device__ __forceinline__ void Append(const AppendShape& shape,
                                       const AppendToken& token,
                                       float2 (&table)[kMaxPairs]) {
  const PageLayout& layout = shape.layout;
  const int32_t rotated = shape.rotary_dim / 2;
  const int32_t pairs = layout.head_dim / 2;
  const int32_t padded = layout.padded_dim / 2;
  const int32_t heads = shape.query_heads + 2 * layout.kv_heads;
  for (int32_t i = static_cast<int32_t>(threadIdx.x); i < rotated;
       i += kAppendThreads) {
    table[i] = CosSin(static_cast<double>(token.rank) * shape.frequencies[i]);
  }
  __syncthreads();
  const auto lane = static_cast<int32_t>(threadIdx.x % 32);
  for (auto head = static_cast<int32_t>(threadIdx.x / 32); head < heads;
       head += kAppendThreads / 32) {
    const int32_t key_head = head - shape.query_heads;  // < 0: a query
    const int32_t value_head = key_head - layout.kv_heads;
    const bool turns = key_head < 0 || (value_head < 0 && token.rotate_keys);
    T* to = static_cast<T*>(token.queries) + int64_t{head} * layout.padded_dim;
    if (key_head >= 0) {
      const int32_t g = value_head < 0 ? key_head : value_head;
      const int32_t slot =
          token.free_slot == nullptr ? token.position : token.free_slot[g];
      unsigned char* block = BlockBytes(layout, token.cache, g, slot / kSlots);
      if (value_head < 0 && lane == 0) {
        *PositionAt(layout, token.cache, g, slot) = token.position;
        *ScoreAt(layout, token.cache, g, slot) = 0.0F;
      }
      if (value_head >= 0) block += layout.v_offset;
      to = reinterpret_cast<T*>(block) +
           int64_t{slot % kSlots} * layout.padded_dim;
    }
    const float* from = token.qkv + int64_t{head} * layout.head_dim;
    for (int32_t i = lane; i < padded; i += 32) {
      float2 x = make_float2(0.0F, 0.0F);
      if (i < pairs) x = *reinterpret_cast<const float2*>(from + 2 * i);
      if (turns && i < rotated) x = RotatePair(x, table[i]);
      StorePair(to + 2 * i, x.x, x.y);
    }
  }
}

}  // namespace kf::cuda
