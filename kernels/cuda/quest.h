// Bounds of pages, for Quest: BoundPages of kernels/backend.h. A decode step
// keeps them up to date and chooses by them (DecodeChoosePages).
#pragma once

#include <cstdint>

#include "kernels/cuda/page_layout.h"
#include "kernels/cuda/stream.h"

namespace kf::cuda {

// Slot i of each head of `bounds` becomes the smallest (in K) and the largest
// (in V) value of each K channel of page i of `cache`, over positions below
// `tokens` >= 1. Lists are in device memory.
void BoundPages(gpu::Stream stream,
                const PageLayout& layout,
                int32_t tokens,
                const PageList& cache,
                const PageList& bounds);

}  // namespace kf::cuda
