#include "kernels/cpu/rank_positions.h"

#include <algorithm>
#include <array>

#include "kernels/core/status.h"
#include "kernels/cpu/attention_layout.h"

namespace kf::cpu {
namespace {

constexpr int32_t kRankBlock = 64;  // of a work item

}  // namespace

absl::StatusOr<const float*> RankRotations(AttentionContext& context,
                                           const AttentionShape& shape,
                                           int32_t ranks) {
  const int64_t width = shape.rotary_dim;
  KF_ASSIGN_OR_RETURN(float* table, context.scratch.Take<float>(ranks * width));
  const int32_t blocks = (ranks + kRankBlock - 1) / kRankBlock;
  context.pool.ParallelFor(blocks, [&](int64_t block, int /*worker*/) {
    const auto first = static_cast<int32_t>(block) * kRankBlock;
    for (int32_t r = first; r < std::min(ranks, first + kRankBlock); ++r) {
      context.rope.Row(r, table + r * width);
    }
  });
  return table;
}

void FindRanks(const HeadLayout& layout,
               const HeadPages& pages,
               int32_t slots,
               uint64_t* keys,
               int32_t* ranks) {
  for (int32_t slot = 0; slot < slots; ++slot) {
    const int32_t position = PositionsOf(
        layout, BlockOf(pages, slot / kPageTokens))[slot % kPageTokens];
    keys[slot] = (uint64_t{static_cast<uint32_t>(position)} << 32) |
                 static_cast<uint32_t>(slot);
  }
  std::sort(keys, keys + slots);
  for (int32_t rank = 0; rank < slots; ++rank) {
    ranks[static_cast<uint32_t>(keys[rank])] = rank;
  }
}

void RotateBlock(const AttentionKernels& kernels,
                 const HeadLayout& layout,
                 const float* rotations,
                 const int32_t* ranks,
                 int32_t live,
                 const unsigned char* from,
                 unsigned char* to) {
  std::array<const float*, kPageTokens> cos_sin;
  for (int32_t slot = 0; slot < kPageTokens; ++slot) {
    cos_sin[static_cast<size_t>(slot)] =
        rotations + int64_t{slot < live ? ranks[slot] : 0} * layout.rotary_dim;
  }
  kernels.rotate_keys({&layout, from, cos_sin.data(), to});
}

}  // namespace kf::cpu
