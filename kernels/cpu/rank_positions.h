// Positions `cache` on the CPU: pages hold K unrotated, and the kernels read
// copies that are rotated by rank. An ablation: correct first.
#pragma once

#include <cstdint>

#include "absl/status/statusor.h"
#include "kernels/backend.h"
#include "kernels/cpu/attention.h"
#include "kernels/cpu/attention_kernels.h"

namespace kf::cpu {

// Rotations of ranks [0, ranks), in scratch memory: pairs {cos, sin},
// [ranks][rotary_dim]. `rope` must be prepared for them.
absl::StatusOr<const float*> RankRotations(AttentionContext& context,
                                           const AttentionShape& shape,
                                           int32_t ranks);

// ranks[slot] = the slot's place in order of position, for slots [0, slots).
// keys: working memory [slots].
void FindRanks(const HeadLayout& layout,
               const HeadPages& pages,
               int32_t slots,
               uint64_t* keys,
               int32_t* ranks);

// K of one block, the slot i of `live` rotated by ranks[i]; what is in the
// other slots comes out as anything.
void RotateBlock(const AttentionKernels& kernels,
                 const HeadLayout& layout,
                 const float* rotations,
                 const int32_t* ranks,
                 int32_t live,
                 const unsigned char* from,
                 unsigned char* to);

// The layout with which a token is appended unrotated.
inline HeadLayout Unrotated(HeadLayout layout) {
  layout.rotary_dim = 0;
  return layout;
}

// Bytes of a rotated copy of a block's K.
inline int64_t KeyBytes(const HeadLayout& layout) { return layout.v_offset; }

}  // namespace kf::cpu
