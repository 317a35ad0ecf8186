// Products by integer weights that stay packed in device memory: y = x W^T,
// with the residual add in the epilogue. W's values are those of its groups,
// rounded to bf16 in registers, and x is bf16: a row has the bits of a bf16
// product (product.h) by those values. (A minimum below 2^-9 of its group's
// scale loses its last bits: group_unpack.cuh.)
//
// Up to kGroupFewRows rows, decoding among them, the packed weights are read
// once, at the speed of memory. For more rows W is unpacked, a piece at a time,
// into `room` and multiplied there.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/core/bf16.h"
#include "kernels/cuda/stream.h"

namespace kf::cuda {

inline constexpr int64_t kGroupFewRows = 64;

// Device memory; row-major. Of W's outputs these are some that follow each
// other: y and residual point to the first.
struct GroupProductArgs {
  const Bf16* x = nullptr;           // [rows, in], 16-byte aligned
  const std::byte* tiles = nullptr;  // GroupTile<bits>, of out x in
  int bits = 4;                      // or 8
  const float* residual = nullptr;   // [rows, stride], or null; may be y
  float* y = nullptr;                // [rows, stride]
  int64_t rows = 0;
  int64_t in = 0;  // a multiple of 8
  int64_t out = 0;
  int64_t stride = 0;  // >= out
  // For more than kGroupFewRows rows: room_outputs in, 16-byte aligned.
  Bf16* room = nullptr;
  int64_t room_outputs = 0;  // a multiple of 8
};

void GroupProduct(gpu::Stream stream, const GroupProductArgs& args);

// The outputs that are unpacked at a time: all of them, or as many as take
// 64 MB.
int64_t GroupRoomOutputs(int64_t in, int64_t out);

}  // namespace kf::cuda
