// The one CUDA type that launch functions name, without the toolkit's headers.
#pragma once

struct CUstream_st;

namespace kf::gpu {

// Work given to it runs in order; null: the default stream. Never owned here.
using Stream = CUstream_st*;

}  // namespace kf::gpu
