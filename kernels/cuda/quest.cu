#include "kernels/cuda/block_reduce.cuh"
#include "kernels/cuda/decode_attention.h"
#include "kernels/cuda/decode_row.cuh"
#include "kernels/cuda/gpu.h"
#include "kernels/cuda/page_access.cuh"
#include "kernels/cuda/quest.h"
#include "kernels/cuda/radix_select.cuh"
#include "kernels/cuda/score.cuh"

namespace kf::cuda {
namespace {

constexpr int kBoundThreads = 128;
constexpr int kChooseThreads = 256;
constexpr int32_t kChooseWarps = kChooseThreads / kWarp;

// Row `row` of K (or V) of a head's block.
template <typename T>
__device__ T* RowAt(const PageLayout& layout,
                    unsigned char* block,
                    int32_t row) {
  return reinterpret_cast<T*>(block) + int64_t{row} * layout.padded_dim;
}

// A block's threads bound page `page`, whose tokens end before `tokens`. A NaN
// passes as in the reference: it stays where it came first.
template <typename T>
__device__ void BoundPage(const PageLayout& layout,
                          int32_t tokens,
                          const PageList& cache,
                          const PageList& bounds,
                          int32_t head,
                          int32_t page) {
  const T* keys = RowAt<T>(layout, BlockBytes(layout, cache, head, page), 0);
  unsigned char* to = BlockBytes(layout, bounds, head, page / kSlots);
  const int32_t slots = min(kSlots, tokens - page * kSlots);
  for (auto c = static_cast<int32_t>(threadIdx.x); c < layout.padded_dim;
       c += static_cast<int32_t>(blockDim.x)) {
    float low = gpu::to_float(keys[c]);
    float high = low;
    for (int32_t slot = 1; slot < slots; ++slot) {
      const float k = gpu::to_float(keys[slot * layout.padded_dim + c]);
      low = k < low ? k : low;
      high = high < k ? k : high;
    }
    RowAt<T>(layout, to, page % kSlots)[c] = gpu::from_float<T>(low);
    RowAt<T>(layout, to + layout.v_offset, page % kSlots)[c] =
        gpu::from_float<T>(high);
  }
}

// Block (page, head).
template <typename T>
__global__ void __launch_bounds__(kBoundThreads) BoundPagesKernel(
    PageLayout layout, int32_t tokens, PageList cache, PageList bounds) {
  BoundPage<T>(layout, tokens, cache, bounds, static_cast<int32_t>(blockIdx.y),
               static_cast<int32_t>(blockIdx.x));
}

// Block (head, row): the page of the row's token, by the last row of a run that
// has its token there.
template <typename T>
__global__ void __launch_bounds__(kBoundThreads)
    BoundNewestKernel(DecodeWork work) {
  const DecodeItem& item = work.items[blockIdx.y];
  const bool last_in_page = !item.continued || item.held % kSlots == kSlots - 1;
  if (item.bounds.pages == nullptr || !last_in_page) return;
  BoundPage<T>(work.shape.layout, item.held + 1, item.cache, item.bounds,
               static_cast<int32_t>(blockIdx.x), item.held / kSlots);
}

// A warp: the most that a query of the group can give to a key of a page.
template <typename T>
__device__ float PageBound(const DecodeShape& shape,
                           const T* queries,
                           const T* low,
                           const T* high,
                           int32_t lane) {
  const int32_t group = shape.query_heads / shape.layout.kv_heads;
  const int32_t padded = shape.layout.padded_dim;
  float best = -INFINITY;
  for (int32_t j = 0; j < group; ++j) {
    float sum = 0.0F;
    for (int32_t c = lane; c < padded; c += kWarp) {
      const float q = gpu::to_float(queries[j * padded + c]);
      sum += fmaxf(q * gpu::to_float(low[c]), q * gpu::to_float(high[c]));
    }
    sum = WarpSum(sum);
    best = fmaxf(best, sum != sum ? INFINITY : sum);
  }
  return best;
}

// Block (head, row) writes the numbers of the pages that are read, in order.
template <typename T>
__global__ void __launch_bounds__(kChooseThreads)
    ChoosePagesKernel(DecodeWork work) {
  const DecodeItem& item = work.items[blockIdx.y];
  if (item.chosen == kNoMemory) return;
  const DecodeShape& shape = work.shape;
  const PageLayout& layout = shape.layout;
  const auto head = static_cast<int32_t>(blockIdx.x);
  const auto thread = static_cast<int32_t>(threadIdx.x);
  const int32_t newest = item.held / kSlots;
  auto* keys =
      Words<uint32_t>(work, item.bound_keys) + int64_t{head} * (newest + 1);
  int32_t* chosen =
      Words<int32_t>(work, item.chosen) + int64_t{head} * item.read_pages;
  const T* queries = Words<T>(work, work.plan.queries) +
                     (int64_t{blockIdx.y} * shape.query_heads +
                      int64_t{head} * (shape.query_heads / layout.kv_heads)) *
                         layout.padded_dim;
  for (int32_t page = thread / kWarp; page < newest; page += kChooseWarps) {
    unsigned char* block = BlockBytes(layout, item.bounds, head, page / kSlots);
    const float bound =
        PageBound(shape, queries, RowAt<T>(layout, block, page % kSlots),
                  RowAt<T>(layout, block + layout.v_offset, page % kSlots),
                  thread % kWarp);
    if (thread % kWarp == 0) keys[page] = RankBits(bound);
  }
  __syncthreads();  // all bounds
  const int32_t best = item.read_pages - 1;
  if (best > 0) {
    SelectLargest<kChooseThreads>(
        newest, best, [&](int32_t page) { return keys[page]; }, chosen);
  }
  for (int32_t i = thread; i <= best; i += kChooseThreads) {
    chosen[i] = item.cache.pages[i < best ? chosen[i] : newest];
  }
}

template <typename T>
void ChoosePages(gpu::Stream stream, const DecodeWork& work) {
  const dim3 heads(static_cast<unsigned>(work.shape.layout.kv_heads),
                   static_cast<unsigned>(work.rows));
  gpu::launch(stream, heads, kBoundThreads, 0, BoundNewestKernel<T>, work);
  gpu::launch(stream, heads, kChooseThreads, 0, ChoosePagesKernel<T>, work);
}

}  // namespace

void BoundPages(gpu::Stream stream,
                const PageLayout& layout,
                int32_t tokens,
                const PageList& cache,
                const PageList& bounds) {
  const dim3 grid(static_cast<unsigned>(PagesFor(tokens)),
                  static_cast<unsigned>(layout.kv_heads));
  gpu::launch(stream, grid, kBoundThreads, 0,
              layout.element_bytes == 4 ? BoundPagesKernel<float>
                                        : BoundPagesKernel<gpu::bf16>,
              layout, tokens, cache, bounds);
}

void DecodeChoosePages(gpu::Stream stream, const DecodeWork& work) {
  if (work.shape.layout.element_bytes == 4) {
    ChoosePages<float>(stream, work);
  } else {
    ChoosePages<gpu::bf16>(stream, work);
  }
}

}  // namespace kf::cuda
