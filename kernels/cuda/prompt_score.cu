#include "kernels/cuda/gpu.h"
#include "kernels/cuda/head_dim.h"
#include "kernels/cuda/prompt_f32.cuh"
#include "kernels/cuda/prompt_score.h"
#include "kernels/cuda/prompt_score_bf16.cuh"

namespace kf::cuda {
namespace {

dim3 Grid(const PromptArgs& args, int32_t tile_keys) {
  return {static_cast<unsigned>(args.layout.kv_heads),
          static_cast<unsigned>((args.max_end + tile_keys - 1) / tile_keys),
          static_cast<unsigned>(args.item_count)};
}

}  // namespace

void ScorePrompt(gpu::Stream stream, const PromptArgs& args) {
  if (args.item_count == 0 || !args.any_scored) return;
  WithHeadDim(args.layout.padded_dim, [&](auto dim) {
    constexpr int kDim = dim();
    if (args.layout.element_bytes == 4) {
      gpu::launch(stream, Grid(args, kExactKeys), kExactThreads,
                  sizeof(ScoreExactShared<kDim>), ScoreF32Kernel<kDim>, args);
    } else {
      gpu::launch(stream, Grid(args, kTile), kTileThreads,
                  sizeof(ScoreShared<kDim>), ScoreBf16Kernel<kDim>, args);
    }
  });
}

}  // namespace kf::cuda
