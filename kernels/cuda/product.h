// Dense products of the CUDA backend: y = x W^T, with the residual add in the
// epilogue. products.h says where cuBLASLt takes their place.
//
// Each output is one chain of sums over k in index order (bf16: of
// tensor-core steps of 16 k each; f32: of fused multiply-adds), whatever the
// number of rows: a kernel for few rows streams W at the speed of memory, one
// for many reuses it from tiles, and both give a row the same bits.
#pragma once

#include <cstdint>

#include "kernels/core/bf16.h"
#include "kernels/cuda/stream.h"

namespace kf::cuda {

// Device memory; row-major. X is float or Bf16, and so is W.
template <typename X>
struct ProductArgs {
  const X* x = nullptr;             // [rows, in], 16-byte aligned
  const X* w = nullptr;             // [out, in], 16-byte aligned
  const float* residual = nullptr;  // [rows, out], or null; may be y
  float* y = nullptr;               // [rows, out] = residual + x W^T
  int64_t rows = 0;                 // M
  int64_t in = 0;                   // K, a multiple of 16 bytes
  int64_t out = 0;                  // N
  // From one row of y, and of the residual, to the next; 0: out. Of our own
  // bf16 products alone.
  int64_t stride = 0;
};

// bf16 values, f32 sums on tensor cores.
void Product(gpu::Stream stream, const ProductArgs<Bf16>& args);
// f32 by plain fused multiply-adds: the exact path, not a fast one.
void Product(gpu::Stream stream, const ProductArgs<float>& args);

// x of a bf16 product: `count` values rounded to nearest even. Device memory,
// 16-byte aligned.
void RoundToBf16(gpu::Stream stream,
                 const float* x,
                 int64_t count,
                 Bf16* rounded);

}  // namespace kf::cuda
