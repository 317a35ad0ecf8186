#include "kernels/core/status.h"
#include "kernels/cuda/gpu.h"
#include "kernels/cuda/prompt_append.h"
#include "kernels/cuda/rotary.cuh"

namespace kf::cuda {
namespace {

constexpr int kRankedThreads = 128;

// Block (row of an item, item).
template <typename T>
__global__ void __launch_bounds__(kAppendThreads)
    AppendPromptKernel(PromptArgs args) {
  KF_GPU_SHARED(float2[kMaxPairs], table);
  const PromptItem& item = args.items[blockIdx.y];
  const auto row = static_cast<int32_t>(blockIdx.x);
  if (row >= item.rows) return;
  const int64_t batch_row = item.batch_row + row;
  const int32_t heads = args.query_heads + 2 * args.layout.kv_heads;
  AppendToken token;
  token.qkv = args.qkv + batch_row * heads * args.layout.head_dim;
  token.queries = reinterpret_cast<T*>(args.queries) +
                  batch_row * args.query_heads * args.layout.padded_dim;
  token.rank = item.first_row + row;
  token.position = token.rank;
  token.rotate_keys = !item.rank_positions;
  token.cache = item.keys;
  Append<T>({args.layout, args.query_heads, args.rotary_dim, args.frequencies},
            token, table);
}

// Block (page, item).
template <typename T>
__global__ void __launch_bounds__(kRankedThreads)
    RotateRankedKeysKernel(PromptArgs args) {
  KF_GPU_SHARED(float2[kSlots][kMaxPairs], table);
  const PromptItem& item = args.items[blockIdx.y];
  const auto page = static_cast<int32_t>(blockIdx.x);
  const int32_t end = item.first_row + item.rows;
  if (!item.rank_positions || page * kSlots >= end) return;
  const PageLayout& layout = args.layout;
  const int32_t rotated = args.rotary_dim / 2;
  const int32_t padded = layout.padded_dim / 2;
  const int32_t slots = min(kSlots, end - page * kSlots);
  const auto thread = static_cast<int32_t>(threadIdx.x);
  for (int32_t i = thread; i < slots * rotated; i += kRankedThreads) {
    const int32_t rank = page * kSlots + i / rotated;
    table[i / rotated][i % rotated] =
        CosSin(static_cast<double>(rank) * args.frequencies[i % rotated]);
  }
  __syncthreads();
  const int64_t head_elements = int64_t{kSlots} * layout.padded_dim;
  T* out = reinterpret_cast<T*>(args.ranked_keys) +
           (item.ranked_page + page) * layout.kv_heads * head_elements;
  for (int32_t g = 0; g < layout.kv_heads; ++g) {
    const T* keys =
        reinterpret_cast<const T*>(BlockBytes(layout, item.keys, g, page));
    for (int32_t i = thread; i < slots * padded; i += kRankedThreads) {
      const int32_t slot = i / padded;
      const int32_t pair = i % padded;
      const int64_t at = 2 * int64_t{i};
      float2 x =
          make_float2(gpu::to_float(keys[at]), gpu::to_float(keys[at + 1]));
      if (pair < rotated) x = RotatePair(x, table[slot][pair]);
      StorePair(out + g * head_elements + at, x.x, x.y);
    }
  }
}

void Check(const PromptArgs& args) {
  KF_CHECK(args.rotary_dim % 2 == 0 && args.rotary_dim <= args.layout.head_dim);
}

dim3 Grid(int32_t x, int32_t items) {
  return {static_cast<unsigned>(x), static_cast<unsigned>(items)};
}

}  // namespace

void AppendPrompt(gpu::Stream stream, const PromptArgs& args) {
  if (args.item_count == 0) return;
  Check(args);
  gpu::launch(stream, Grid(args.max_rows, args.item_count), kAppendThreads, 0,
              args.layout.element_bytes == 4 ? AppendPromptKernel<float>
                                             : AppendPromptKernel<gpu::bf16>,
              args);
}

void RotateRankedKeys(gpu::Stream stream, const PromptArgs& args) {
  if (args.item_count == 0 || !args.any_ranked) return;
  Check(args);
  gpu::launch(
      stream, Grid(PagesFor(args.max_end), args.item_count), kRankedThreads, 0,
      args.layout.element_bytes == 4 ? RotateRankedKeysKernel<float>
                                     : RotateRankedKeysKernel<gpu::bf16>,
      args);
}

}  // namespace kf::cuda
