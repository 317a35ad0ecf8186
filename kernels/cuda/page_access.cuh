// Device code: where a slot of a page list lies (page_layout.h).
#pragma once

#include <cstdint>

#include "kernels/cuda/gpu.h"
#include "kernels/cuda/page_layout.h"

namespace kf::cuda {

// A head's block of page `page` of the list.
__device__ inline unsigned char* BlockBytes(const PageLayout& layout,
                                            const PageList& list,
                                            int32_t head,
                                            int32_t page) {
  const int32_t* pages = gpu::in_device_memory(list.pages);
  return gpu::in_device_memory(list.base) +
         int64_t{pages[page]} * layout.page_bytes + head * layout.head_bytes;
}

__device__ inline float* ScoreAt(const PageLayout& layout,
                                 const PageList& list,
                                 int32_t head,
                                 int32_t slot) {
  unsigned char* block = BlockBytes(layout, list, head, slot / kSlots);
  return reinterpret_cast<float*>(block + layout.score_offset) + slot % kSlots;
}

__device__ inline int32_t* PositionAt(const PageLayout& layout,
                                      const PageList& list,
                                      int32_t head,
                                      int32_t slot) {
  unsigned char* block = BlockBytes(layout, list, head, slot / kSlots);
  return reinterpret_cast<int32_t*>(block + layout.position_offset) +
         slot % kSlots;
}

// The same block where T and dp are known; kv_heads is G.
template <typename T, int kDim>
__device__ HeadBlock<T, kDim>* BlockAt(const PageList& list,
                                       int32_t kv_heads,
                                       int32_t head,
                                       int32_t page) {
  const int32_t* pages = gpu::in_device_memory(list.pages);
  auto* blocks =
      reinterpret_cast<HeadBlock<T, kDim>*>(gpu::in_device_memory(list.base));
  return blocks + int64_t{pages[page]} * kv_heads + head;
}

}  // namespace kf::cuda
