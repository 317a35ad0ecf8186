// Whether two arrays on the device are the same, bit for bit.
#pragma once

#include <cstdint>

#include "kernels/cuda/stream.h"

namespace kf::cuda {

// Adds to *differing the number of words that differ. Device memory, `count`
// words each.
void CompareBits(gpu::Stream stream,
                 const float* a,
                 const float* b,
                 int64_t count,
                 uint32_t* differing);

}  // namespace kf::cuda
