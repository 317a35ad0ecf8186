// Attention of the CPU backend: scoring, selection and the cache pages behind
// Backend's attention operations (docs/adr/0002-slot-cache.md).
//
// Called from the engine thread; work is spread over the pool. A row's bits
// depend on the row alone: see the order of sums at each function.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "kernels/backend.h"
#include "kernels/core/thread_pool.h"
#include "kernels/cpu/rope.h"
#include "kernels/cpu/scratch.h"
#include "kernels/cpu/simd_level.h"

namespace kf::cpu {

// What the functions below borrow from their backend.
struct AttentionContext {
  SimdLevel level;
  ThreadPool& pool;
  ScratchArena& scratch;  // reset by each call
  RopeTable& rope;        // rotations seen so far
};

size_t PageBytes(const AttentionShape& shape);

// Rows are cut into tiles of kPromptRowTile at absolute multiples; a tile's
// score columns are summed head by head and row by row, and added to the page
// scores tile by tile: the bits do not depend on how a prompt is sliced.
absl::Status PromptAttention(AttentionContext& context,
                             const PromptAttentionArgs& args);

// Ranks are f32: sums over layers and heads in order, then the division by age.
absl::Status Compact(AttentionContext& context, const CompactArgs& args);
absl::Status AddRowScores(AttentionContext& context,
                          const AddRowScoresArgs& args);
absl::Status Evict(AttentionContext& context, const EvictArgs& args);
absl::Status CopyPages(AttentionContext& context,
                       const AttentionShape& shape,
                       std::byte* base,
                       std::span<const PageCopy> copies);

// Keys are cut into chunks of DecodeChunkSlots slots, whose partial results are
// combined in slot order.
absl::Status DecodeAttention(AttentionContext& context,
                             const DecodeAttentionArgs& args);

// The bounds of a prompt's pages (quest.h).
absl::Status BoundPages(AttentionContext& context,
                        const AttentionShape& shape,
                        int32_t tokens,
                        const PageSpan& cache,
                        const PageSpan& bounds);

std::vector<HeldTokens> ReadHeld(const AttentionShape& shape,
                                 const PageSpan& cache,
                                 int32_t held,
                                 const int32_t* free_slot);

}  // namespace kf::cpu
