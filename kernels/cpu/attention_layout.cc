#include "kernels/cpu/attention_layout.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "kernels/core/noise.h"
#include "kernels/core/status.h"
#include "kernels/cpu/attention.h"
#include "kernels/cpu/tile_kernels.h"

namespace kf::cpu {

static_assert(kSlots == kPageTokens && kTileRows == kPromptRowTile);
static_assert(kNoNoise == static_cast<int32_t>(NoiseKind::kNone));
static_assert(kConstantNoise == static_cast<int32_t>(NoiseKind::kConstant));
static_assert(kGumbelNoise == static_cast<int32_t>(NoiseKind::kGumbel));
static_assert(kGaussianNoise == static_cast<int32_t>(NoiseKind::kGaussian));

namespace {

size_t ElementBytes(const AttentionShape& shape) {
  return static_cast<size_t>(LayoutOf(shape.cache_dtype).bytes);
}

// Elements of K or V of a slot.
int32_t RowElements(const AttentionShape& shape) {
  return shape.cache_dtype == DType::kI8 ? (shape.head_dim + 3) / 4 * 4
                                         : shape.head_dim;
}

// Bytes of K or V of 16 slots, and of their scales.
size_t MatrixBytes(const AttentionShape& shape) {
  return static_cast<size_t>(kPageTokens * RowElements(shape)) *
         ElementBytes(shape);
}
size_t ScaleBytes(const AttentionShape& shape) {
  return shape.cache_dtype == DType::kI8 ? kPageTokens * sizeof(float) : 0;
}

}  // namespace

HeadLayout MakeHeadLayout(const AttentionShape& shape) {
  KF_CHECK(shape.head_dim > 0 && shape.head_dim % 2 == 0);
  KF_CHECK(shape.kv_heads > 0 && shape.query_heads % shape.kv_heads == 0);
  KF_CHECK(shape.cache_dtype == DType::kBF16 ||
           shape.cache_dtype == DType::kF32 || shape.cache_dtype == DType::kI8);
  HeadLayout layout = {};
  layout.d = shape.head_dim;
  layout.padded_d = (shape.head_dim + 15) / 16 * 16;
  layout.rotary_dim = shape.rotary_dim;
  layout.bf16 = shape.cache_dtype == DType::kBF16;
  layout.bytes = shape.cache_dtype == DType::kI8;
  KF_CHECK(!layout.bytes || shape.head_dim <= kMaxByteRow);
  layout.value_stride = RowElements(shape);
  const auto words =
      static_cast<int32_t>(MatrixBytes(shape) / sizeof(uint32_t));
  layout.steps = words / kPageTokens;
  layout.query_words = layout.bytes ? 2 * layout.steps + 1 : layout.steps;
  layout.scale =
      static_cast<float>(1.0 / std::sqrt(static_cast<double>(shape.head_dim)));
  const auto matrix = static_cast<int64_t>(MatrixBytes(shape));
  layout.k_scale_offset = matrix;
  layout.v_offset = matrix + static_cast<int64_t>(ScaleBytes(shape));
  layout.v_scale_offset = layout.v_offset + matrix;
  layout.position_offset = 2 * layout.v_offset;
  layout.score_offset = layout.position_offset + kPageTokens * 4;
  return layout;
}

size_t HeadBytes(const AttentionShape& shape) {
  return 2 * (MatrixBytes(shape) + ScaleBytes(shape) + kPageTokens * 4);
}

size_t PageBytes(const AttentionShape& shape) {
  return static_cast<size_t>(shape.kv_heads) * HeadBytes(shape);
}

HeadPages MakeHeadPages(const AttentionShape& shape,
                        const PageSpan& span,
                        int32_t head) {
  return {reinterpret_cast<unsigned char*>(span.base) +
              static_cast<size_t>(head) * HeadBytes(shape),
          span.pages.data(), static_cast<int64_t>(PageBytes(shape))};
}

#if KF_X86_LEVELS
namespace {

bool FitsTiles(const HeadLayout& layout) {
  return layout.bf16 && layout.d % 32 == 0;
}

// Prompts on tiles where their shape fits, all else on avx512.
const AttentionKernels& AttentionKernelsWithTiles() {
  static const AttentionKernels kernels = [] {
    AttentionKernels with_tiles = avx512::kAttentionKernels;
    with_tiles.pairs_values = FitsTiles;
    with_tiles.prompt_tile = [](const PromptTile& tile) {
      if (FitsTiles(*tile.layout)) {
        amx_bf16::AttendOnTiles(tile);
      } else {
        avx512::kAttentionKernels.prompt_tile(tile);
      }
    };
    return with_tiles;
  }();
  return kernels;
}

}  // namespace
#endif

const AttentionKernels& KernelsOf(SimdLevel level) {
#if KF_X86_LEVELS
  switch (level) {
    case SimdLevel::kScalar:
      return scalar::kAttentionKernels;
    case SimdLevel::kAvx2:
      return avx2::kAttentionKernels;
    case SimdLevel::kAmxBf16:
      return AttentionKernelsWithTiles();
    case SimdLevel::kAvx512:
      return avx512::kAttentionKernels;
    case SimdLevel::kAvx512Bf16:
      return avx512_bf16::kAttentionKernels;
  }
#endif
  KF_CHECK(level == SimdLevel::kScalar);
  return scalar::kAttentionKernels;
}

ScoreSpec MakeScoreSpec(const ScoreOptions& score) {
  KF_CHECK(!score.enabled || score.tau > 0.0F);
  return {score.enabled, static_cast<int32_t>(score.noise), score.tau};
}

AgeSpec MakeAgeSpec(const ScoreAge& age) {
  KF_CHECK(age.prompt_tokens >= 0 && age.decode_rows >= 0 &&
           age.decode_rows <=
               std::numeric_limits<int32_t>::max() - age.prompt_tokens);
  return {age.enabled, age.prompt_tokens, age.prompt_rows, age.decode_rows};
}

NoiseWords MakeNoiseWords(const ScoreOptions& score,
                          int32_t layer,
                          int32_t query_head,
                          int32_t position) {
  const NoiseRow row = MakeNoiseRow(
      score.seed,
      score.resample_once ? kEveryQuery : static_cast<uint32_t>(position),
      static_cast<uint32_t>(layer), static_cast<uint32_t>(query_head),
      score.stream);
  return {row.a, row.b};
}

std::vector<HeldTokens> ReadHeld(const AttentionShape& shape,
                                 const PageSpan& cache,
                                 int32_t held,
                                 const int32_t* free_slot) {
  const HeadLayout layout = MakeHeadLayout(shape);
  std::vector<HeldTokens> result(static_cast<size_t>(shape.kv_heads));
  for (int32_t g = 0; g < shape.kv_heads; ++g) {
    const HeadPages pages = MakeHeadPages(shape, cache, g);
    std::vector<std::pair<int32_t, float>> tokens;
    for (int32_t slot = 0; slot <= held; ++slot) {
      if (slot == free_slot[g]) continue;
      unsigned char* block = BlockOf(pages, slot / kPageTokens);
      tokens.emplace_back(PositionsOf(layout, block)[slot % kPageTokens],
                          ScoresOf(layout, block)[slot % kPageTokens]);
    }
    std::sort(tokens.begin(), tokens.end(),
              [](const auto& a, const auto& b) { return a.first < b.first; });
    HeldTokens& head = result[static_cast<size_t>(g)];
    for (const auto& [position, score] : tokens) {
      head.positions.push_back(position);
      head.scores.push_back(score);
    }
  }
  return result;
}

}  // namespace kf::cpu
