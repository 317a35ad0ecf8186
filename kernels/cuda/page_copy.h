// Copies out of cache pages: whole pages (CopyPages of kernels/backend.h), and
// what a report says of the held tokens (ReadHeld). Bound by memory.
#pragma once

#include <cstdint>

#include "kernels/cuda/page_layout.h"
#include "kernels/cuda/stream.h"

namespace kf::cuda {

// Page numbers; the same fields as PageCopy of backend.h.
struct PagePair {
  int32_t from = 0;
  int32_t to = 0;
};

// Pages of one pool at `base`; `pairs` [count] is device memory. All targets
// differ, and no source is a target.
void CopyPages(gpu::Stream stream,
               const PageLayout& layout,
               unsigned char* base,
               const PagePair* pairs,
               int32_t count);

// positions and scores, each [G][slots], device memory: those of slots [0,
// slots) of each head, but of its free one (free_slot [G]), which nobody may
// have written yet, -1 and 0. slots >= 1.
void GatherHeld(gpu::Stream stream,
                const PageLayout& layout,
                const PageList& cache,
                int32_t slots,
                const int32_t* free_slot,
                int32_t* positions,
                float* scores);

}  // namespace kf::cuda
