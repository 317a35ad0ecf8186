// Token embeddings of the CUDA backend: a gather of rows, bound by memory.
#pragma once

#include <cstdint>

#include "kernels/core/bf16.h"
#include "kernels/cuda/stream.h"

namespace kf::cuda {

// out[i] = table[ids[i]] as f32. Device memory: table [vocabulary, width],
// ids [rows], each below the vocabulary, out [rows, width].
void Embed(gpu::Stream stream,
           const float* table,
           const int32_t* ids,
           int64_t rows,
           int64_t width,
           float* out);
void Embed(gpu::Stream stream,
           const Bf16* table,
           const int32_t* ids,
           int64_t rows,
           int64_t width,
           float* out);

}  // namespace kf::cuda
