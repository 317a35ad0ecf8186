// Decode attention of the CUDA backend: DecodeAttention of kernels/backend.h.
//
// A call is a few launches over all rows. The first writes each token into its
// slot and gathers its rotated queries; others, where a row needs them, find
// ranks (positions `cache`) or choose pages (Quest). Then every (row, kv head)
// is cut into chunks of kDecodeChunk slots: a block reads K and V of its chunk
// once for the whole group of query heads, and leaves a partial sum and, for a
// scored row, exp of the noisy logits. The last launch puts the chunks of a
// (row, kv head) together in order, adds the scores and finds who leaves.
//
// The cut and every order of a sum follow from the row's own slots, so a row's
// bits depend on the row alone. A grid may be larger than a batch needs (blocks
// without work return at once): what a captured graph of a batch bucket relies
// on. Everything per row is read from device memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "kernels/core/score_options.h"
#include "kernels/cuda/page_layout.h"
#include "kernels/cuda/stream.h"

namespace kf::cuda {

inline constexpr int32_t kDecodeChunk = 128;  // slots

// DecodeAttentionItem of backend.h, its pointers in device memory.
struct DecodeItem {
  PageList cache;
  PageList bounds;               // Quest; else null
  int32_t* free_slot = nullptr;  // [G], in/out
  float* row_scores = nullptr;   // [G, held + 1], out, or null
  ScoreOptions score;  // enabled: scored, so `add_scores` holds as well
  ScoreAge age;
  int32_t position = 0;
  int32_t held = 0;
  int32_t budget = 0;
  int32_t recent = 0;
  int32_t read_pages = 0;
  bool rank_positions = false;
  bool defer_eviction = false;
  bool continues = false;
  // A row without a sequence, which fills up a batch: nothing else is read, and
  // its output is 0.
  bool idle = false;

  // Set by PlanDecode. Offsets are in words of the working memory.
  bool continued = false;  // by the item after
  int32_t slots = 0;       // that are read of each head; 0: idle
  int64_t stats = 0;       // [H][chunks] of float4
  int64_t sums = 0;        // [H][chunks][dp] floats
  int64_t numerators = 0;  // scored: [H][chunks][kDecodeChunk] floats
  int64_t ranks = 0;       // rank_positions: [G][slots] int32
  int64_t chosen = 0;  // not all pages read: [G] of [read_pages] page numbers
  int64_t bound_keys = 0;  // and [G][all pages]
};

inline constexpr int64_t kNoMemory = -1;  // an offset of what a row lacks

constexpr int32_t DecodeChunks(int32_t slots) {
  return (slots + kDecodeChunk - 1) / kDecodeChunk;
}

// What a batch needs.
struct DecodePlan {
  int64_t words = 0;       // of working memory, of 4 bytes
  int32_t max_chunks = 0;  // of a row
  int32_t ranks = 0;       // held by a row with rank_positions, at most
  bool quest = false;
  // In words: queries [M][H][dp] T, and [ranks][rotary_dim] pairs {cos, sin}.
  int64_t queries = 0;
  int64_t rotations = kNoMemory;
};

// The same for all rows and layers of a model.
struct DecodeShape {
  PageLayout layout;        // says T, too
  int32_t query_heads = 0;  // H
  int32_t rotary_dim = 0;   // even, 0 .. head_dim
  bool operator==(const DecodeShape&) const = default;
};

// Checks the items as backend.h asks for (violations are KF_CHECKs) and sets
// what is set here.
DecodePlan PlanDecode(const DecodeShape& shape, std::span<DecodeItem> items);

// Some neighbours of a batch, with a plan of their own.
struct DecodeGroup {
  size_t first = 0;
  size_t rows = 0;
  DecodePlan plan;
};

// Plans a batch in as few groups as need no more than `most_words` of working
// memory each, but for a row that needs more alone; 0: one group. They are for
// one launch after another, in one memory. A row's bits do not depend on it.
std::vector<DecodeGroup> PlanDecodeGroups(const DecodeShape& shape,
                                          std::span<DecodeItem> items,
                                          int64_t most_words);

// All pointers are device memory.
struct DecodeWork {
  DecodeShape shape;
  DecodePlan plan;
  int32_t layer = 0;
  int32_t rows = 0;  // M
  // [rotary_dim / 2]: base^(-2 i / rotary_dim), made on the host.
  const double* frequencies = nullptr;
  const float* qkv = nullptr;         // [M, (H + 2 G) d], unrotated
  float* out = nullptr;               // [M, H d]
  const DecodeItem* items = nullptr;  // [M], as planned
  uint32_t* memory = nullptr;         // plan.words, 16-byte aligned
};

void DecodeAttention(gpu::Stream stream, const DecodeWork& work);
// The same for the groups of a batch: `work` is that of all rows.
void DecodeAttention(gpu::Stream stream,
                     const DecodeWork& work,
                     std::span<const DecodeGroup> groups);

// --- the launches, in order ---
// Gathers rotated queries; writes K, V, position and a score of 0.
void DecodeAppend(gpu::Stream stream, const DecodeWork& work);
// Rows with rank_positions: ranks of all held tokens, and rotations by rank.
void DecodeRanks(gpu::Stream stream, const DecodeWork& work);
// Quest: brings bounds up to date and chooses pages.
void DecodeChoosePages(gpu::Stream stream, const DecodeWork& work);
// Partial results of each chunk.
void DecodeSplit(gpu::Stream stream, const DecodeWork& work);
// Output, scores and free slots.
void DecodeMerge(gpu::Stream stream, const DecodeWork& work);

}  // namespace kf::cuda
