// The per-level kernels of attention: flat structs of pointers and counts. The
// callers (prompt_attention.cc, decode_attention.cc) check shapes, cut the work
// and own all memory; see docs/adr/0002-slot-cache.md for the page layout.
#pragma once

#include <stdint.h>

namespace kf::cpu {

inline constexpr int32_t kSlots = 16;            // of a page
inline constexpr int32_t kTileRows = 32;         // of a prompt tile
inline constexpr int32_t kValueBlock = 64;       // slots of V widened at a time
inline constexpr int32_t kDecodeChunk = 256;     // slots of a decode work item,
inline constexpr int32_t kMaxDecodeChunk = 384;  // about, and at most
inline constexpr int32_t kPartialHeader = 16;    // floats, see DecodeChunk
// Channels of a head in an 8-bit cache, at most: 512 products of 8 by 16 bits
// add up in 32, and a head fits the stack.
inline constexpr int32_t kMaxByteRow = 512;

// Offsets inside one kv head's block of a page.
//   K: bf16 [d/2][16 slots][2], f32 [d][16], 8 bits [d/4][16][4], d rounded up
//   to 4: 64 bytes for every step of q . k
//   V: [16][d]; then int32 position[16] and float score[16].
// K and V of 8 bits are followed by their scales, float [16].
struct HeadLayout {
  int32_t d;
  int32_t padded_d;      // d rounded up to 16
  int32_t rotary_dim;    // leading channels rotated
  int32_t steps;         // of a dot product: d / 2 (bf16), d (f32), d / 4
  int32_t query_words;   // of a packed query: `steps`, or 2 steps + 1
  int32_t value_stride;  // elements of a row of V: d, or d rounded up to 4
  bool bf16;
  bool bytes;   // 8 bits; neither: f32
  float scale;  // 1 / sqrt(d)
  int64_t v_offset;
  int64_t k_scale_offset;  // of 8 bits
  int64_t v_scale_offset;
  int64_t position_offset;
  int64_t score_offset;
};

// One kv head's blocks: page i's is base + pages[i] * page_bytes.
struct HeadPages {
  unsigned char* base;
  const int32_t* pages;
  int64_t page_bytes;
};

// Blocks that a thread reads next, for the cache's sake.
struct BlocksAhead {
  HeadPages pages;
  int32_t count;  // 0: unknown
  int64_t bytes;  // of each block
};

// NoiseKind as a number, for code that must not include noise.h (vec.h).
inline constexpr int32_t kNoNoise = 0;
inline constexpr int32_t kConstantNoise = 1;
inline constexpr int32_t kGumbelNoise = 2;
inline constexpr int32_t kGaussianNoise = 3;

struct ScoreSpec {
  bool enabled;
  int32_t noise;
  float tau;
};

// ScoreAge of backend.h; the sum of its fields fits an int32_t.
struct AgeSpec {
  bool enabled;
  int32_t prompt_tokens;
  int32_t prompt_rows;
  int32_t decode_rows;
};

// NoiseRow of noise.h.
struct NoiseWords {
  uint32_t a;
  uint32_t b;
};

// One token's K and V of one kv head, unrotated, into its slot; score 0.
struct AppendToken {
  const HeadLayout* layout;
  const float* k;        // [d]
  const float* v;        // [d]
  const float* cos_sin;  // [rotary_dim]
  unsigned char* block;
  int32_t slot;  // of the block
  int32_t position;
};

// Rows [first_row, first_row + rows) of a prompt, one kv head and its group of
// query heads. Key i is the token of position i, in slot i.
struct PromptTile {
  const HeadLayout* layout;
  HeadPages pages;
  HeadPages keys;  // where K is read: `pages`, or rotated copies
  int32_t group;
  int32_t first_row;
  int32_t rows;       // 1 .. kTileRows
  const uint32_t* q;  // [group][kTileRows][steps], packed; zero beyond rows
  float* out;         // row r, head j: out + r * out_stride + j * d
  int64_t out_stride;
  ScoreSpec score;
  int32_t score_first;      // rows of the tile before it are not scored
  const NoiseWords* words;  // [group][kTileRows]
  float* columns;  // out [keys rounded up to 16]: the tile's score columns
  // Working memory of the calling thread.
  float* logits;  // [kTileRows][logits_stride]
  int64_t logits_stride;
  float* numerators;  // [logits_stride]
  float* values;      // [kValueBlock][padded_d], or pairs of all keys' V
  float* sums;        // [kTileRows][padded_d]
};

// Slots of a work item of decode attention over `slots` > 0, but of the last,
// which has what is left: whole pages, in as even parts as they allow. A small
// last one would not leave the time to fetch what the thread reads next.
inline int32_t DecodeChunkSlots(int32_t slots) {
  constexpr int32_t kPages = kDecodeChunk / kSlots;
  const int32_t pages = (slots + kSlots - 1) / kSlots;
  int32_t chunks = (pages + kPages / 2) / kPages;
  if (chunks == 0) chunks = 1;
  return (pages + chunks - 1) / chunks * kSlots;
}

// Slots [0, slots) of the pages (a sequence's chunk), one kv head.
struct DecodeChunk {
  const HeadLayout* layout;
  HeadPages pages;  // the chunk's first page comes first
  HeadPages keys;   // where K is read: `pages`, or rotated copies
  BlocksAhead ahead;
  int32_t group;
  int32_t slots;      // 1 .. kMaxDecodeChunk
  const uint32_t* q;  // [group][query_words], packed
  ScoreSpec score;
  const NoiseWords* words;  // [group]
  // Working memory.
  uint32_t* split;  // [group][2 steps]
  float* logits;    // [group][kMaxDecodeChunk]
  // Out, for each head: max, sum, largest, noisy sum (RowSums of noise_vec.h),
  // padding to kPartialHeader, then the weighted sum of V [padded_d].
  float* partial;
  // Out: exp((x - max + zeta - largest) / tau) for each slot.
  float* numerators;
  int64_t numerators_stride;  // from a head to the next
};

// Lines that adding up scores leaves the time to fetch for each page.
inline constexpr int32_t kScoreLines = 4;

// Puts a sequence's chunks of one kv head together, in slot order.
struct DecodeCombine {
  const HeadLayout* layout;
  HeadPages pages;
  BlocksAhead ahead;  // read where scored: kScoreLines lines for 16 slots
  int32_t group;
  int32_t slots;         // held + 1
  const float* partial;  // [chunks][group][kPartialHeader + padded_d]
  const float* numerators;
  int64_t numerators_stride;
  float* out;  // [group][d]
  ScoreSpec score;
  // Null: scores are added in the pages. Else out [slots]: what the row gives,
  // 0 where it is not scored.
  float* row_scores;
  float* shares;  // [group][chunks], working memory where scored
};

// Whom a head evicts: slots [0, slots) of the pages, of which only positions
// and scores are read.
struct VictimSearch {
  const HeadLayout* layout;
  HeadPages pages;
  int32_t slots;
  int32_t last_candidate;  // positions above it are recent
  AgeSpec age;
};

// Quest's bounds of 16 pages (quest.h): for each, the largest over the group's
// queries of the sum over channels of max(q low, q high); NaN becomes infinity.
struct PageBounds {
  const HeadLayout* layout;
  const unsigned char* block;  // of the bounds
  int32_t group;
  const uint32_t* q;  // [group][query_words], packed
  float* out;         // [kSlots]
};

// K of one block, each slot rotated by pairs {cos, sin} of its own.
struct KeyRotation {
  const HeadLayout* layout;
  const unsigned char* from;
  const float* const* cos_sin;  // [kSlots], of [rotary_dim]
  unsigned char* to;            // [v_offset] bytes
};

struct AttentionKernels {
  void (*append)(const AppendToken& token);
  // Rotates a query of d floats and packs it into `query_words` words: pairs of
  // bf16, floats, or pairs of 16-bit integers and their scale.
  void (*pack_query)(const HeadLayout& layout,
                     const float* q,
                     const float* cos_sin,
                     uint32_t* out);
  void (*prompt_tile)(const PromptTile& tile);
  // Whether PromptTile::values is to have room for pairs of all keys' V, [keys
  // rounded up to 32, / 2][padded_d].
  bool (*pairs_values)(const HeadLayout& layout);
  void (*decode_chunk)(const DecodeChunk& chunk);
  void (*decode_combine)(const DecodeCombine& combine);
  // The slot of the candidate with the lowest score (over its age), ties to the
  // latest position; NaN counts as infinity. -1: there is no candidate.
  int32_t (*find_victim)(const VictimSearch& search);
  void (*page_bounds)(const PageBounds& work);
  void (*rotate_keys)(const KeyRotation& work);
  // zeta of `count` keys at `positions`: for tests.
  void (*noise)(int32_t kind,
                NoiseWords words,
                const int32_t* positions,
                int64_t count,
                float* out);
};

namespace scalar {
extern const AttentionKernels kAttentionKernels;
}
namespace avx2 {
extern const AttentionKernels kAttentionKernels;
}
namespace avx512 {
extern const AttentionKernels kAttentionKernels;
}
namespace avx512_bf16 {
extern const AttentionKernels kAttentionKernels;
}

}  // namespace kf::cpu
