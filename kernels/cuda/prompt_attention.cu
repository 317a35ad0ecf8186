#include "kernels/cuda/gpu.h"
#include "kernels/cuda/head_dim.h"
#include "kernels/cuda/prompt_attention.h"
#include "kernels/cuda/prompt_attention_bf16.cuh"
#include "kernels/cuda/prompt_f32.cuh"

namespace kf::cuda {
namespace {

// Tiles that a slice of max_rows rows can touch, wherever it starts.
dim3 Grid(const PromptArgs& args, int32_t tile_rows) {
  const int32_t tiles = (args.max_rows + tile_rows - 1) / tile_rows;
  const int32_t unaligned = tile_rows > kScoreTileRows ? 1 : 0;
  return {static_cast<unsigned>(args.query_heads),
          static_cast<unsigned>(tiles + unaligned),
          static_cast<unsigned>(args.item_count)};
}

}  // namespace

void AttendPrompt(gpu::Stream stream, const PromptArgs& args) {
  if (args.item_count == 0) return;
  WithHeadDim(args.layout.padded_dim, [&](auto dim) {
    constexpr int kDim = dim();
    if (args.layout.element_bytes == 4) {
      gpu::launch(stream, Grid(args, kExactRows), kExactThreads,
                  sizeof(AttendExactShared<kDim>), AttendF32Kernel<kDim>, args);
    } else {
      gpu::launch(stream, Grid(args, kTile), kTileThreads,
                  sizeof(AttendShared<kDim>), AttendBf16Kernel<kDim>, args);
    }
  });
}

}  // namespace kf::cuda
