#include "kernels/cuda/gpu.h"
#include "kernels/cuda/page_access.cuh"
#include "kernels/cuda/page_copy.h"

namespace kf::cuda {
namespace {

constexpr int kCopyThreads = 256;
constexpr int kGatherThreads = 128;

// Block (head, pair). The last page of a sequence is partly filled: its free
// slots are copied as they are.
__global__ void __launch_bounds__(kCopyThreads)
    CopyPagesKernel(PageLayout layout,
                    unsigned char* base,
                    const PagePair* pairs) {
  const PagePair pair = pairs[blockIdx.y];
  const int64_t head = int64_t{blockIdx.x} * layout.head_bytes;
  const unsigned char* from =
      gpu::in_device_memory(base + pair.from * layout.page_bytes + head);
  unsigned char* to =
      gpu::in_device_memory(base + pair.to * layout.page_bytes + head);
  const auto bytes = static_cast<int32_t>(layout.head_bytes);
  for (auto at = static_cast<int32_t>(16 * threadIdx.x); at < bytes;
       at += 16 * kCopyThreads) {
    gpu::copy16(to + at, from + at);
  }
}

// A thread has a slot of a head.
__global__ void __launch_bounds__(kGatherThreads)
    GatherHeldKernel(PageLayout layout,
                     PageList cache,
                     int32_t slots,
                     const int32_t* free_slot,
                     int32_t* positions,
                     float* scores) {
  const auto slot =
      static_cast<int32_t>(blockIdx.x * kGatherThreads + threadIdx.x);
  const auto head = static_cast<int32_t>(blockIdx.y);
  if (slot >= slots) return;
  const int64_t to = int64_t{head} * slots + slot;
  const bool live = slot != free_slot[head];
  positions[to] = live ? *PositionAt(layout, cache, head, slot) : -1;
  scores[to] = live ? *ScoreAt(layout, cache, head, slot) : 0.0F;
}

}  // namespace

void CopyPages(gpu::Stream stream,
               const PageLayout& layout,
               unsigned char* base,
               const PagePair* pairs,
               int32_t count) {
  if (count == 0) return;
  const dim3 grid(static_cast<unsigned>(layout.kv_heads),
                  static_cast<unsigned>(count));
  gpu::launch(stream, grid, kCopyThreads, 0, CopyPagesKernel, layout, base,
              pairs);
}

void GatherHeld(gpu::Stream stream,
                const PageLayout& layout,
                const PageList& cache,
                int32_t slots,
                const int32_t* free_slot,
                int32_t* positions,
                float* scores) {
  const dim3 grid(
      static_cast<unsigned>((slots + kGatherThreads - 1) / kGatherThreads),
      static_cast<unsigned>(layout.kv_heads));
  gpu::launch(stream, grid, kGatherThreads, 0, GatherHeldKernel, layout, cache,
              slots, free_slot, positions, scores);
}

}  // namespace kf::cuda
