// Activations of the CUDA backend: element by element, bound by memory.
#pragma once

#include <cstdint>

#include "kernels/cuda/stream.h"

namespace kf::cuda {

// out[i, j] = silu(x[i, j]) * x[i, width + j]; device memory, x [rows, 2
// width], out [rows, width], apart from each other.
void SwiGlu(gpu::Stream stream,
            const float* x,
            int64_t rows,
            int64_t width,
            float* out);

enum class GeluKind : uint8_t {
  kErf,   // x / 2 (1 + erf(x / sqrt 2))
  kTanh,  // its tanh approximation, as GPT-2 and GPT-J were trained with
};

// out[i] = gelu(x[i]); device memory, `count` values; out may be x.
void Gelu(gpu::Stream stream,
          GeluKind kind,
          const float* x,
          int64_t count,
          float* out);

}  // namespace kf::cuda
