// What the operations of attention and its cache are asked for: shapes, cache
// pages, items of prompts and of decode steps. Symbols as in backend.h.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "kernels/core/dtype.h"
#include "kernels/core/score_options.h"

namespace kf {

inline constexpr int32_t kPageTokens = 16;     // token slots of a cache page
inline constexpr int32_t kPromptRowTile = 32;  // a prompt slice ends on these

// Shape and positions of attention, the same for all layers.
struct AttentionShape {
  int32_t query_heads = 0;  // H
  int32_t kv_heads = 0;     // G
  int32_t head_dim = 0;     // d, even
  int32_t rotary_dim = 0;   // leading channels rotated, even, <= d; 0: none
  double rope_base = 10000.0;
  // kF32, kBF16, or kI8: K and V of a token and kv head are rounded to bf16,
  // and then to d integers of 8 bits and a scale each (core/byte_scale.h).
  DType cache_dtype = DType::kBF16;

  // The pages in which a prompt waits until its layer is cut: those of the
  // cache, but bf16 where they are filled with 8 bits.
  AttentionShape prompt() const {
    AttentionShape shape = *this;
    if (cache_dtype == DType::kI8) shape.cache_dtype = DType::kBF16;
    return shape;
  }
  // Channels of a fused row [Q (H d) | K (G d) | V (G d)].
  int64_t qkv_dim() const {
    return int64_t{query_heads + 2 * kv_heads} * head_dim;
  }
  int64_t out_dim() const { return int64_t{query_heads} * head_dim; }
};

// A cache page of one layer holds, for each of G heads, K and V of 16 slots
// with their positions and scores; the layout is the backend's own. A page list
// belongs to one sequence and one layer: slot s is slot s % 16 of page s / 16.
// `base + page * PageBytes(shape)` is a page's address.
struct PageSpan {
  std::byte* base = nullptr;       // the pool
  std::span<const int32_t> pages;  // in slot order
};

// Rows [first_row, first_row + rows) of one prompt through one layer.
struct PromptAttentionItem {
  int32_t prompt_tokens = 0;  // n
  int32_t first_row = 0;      // multiple of kPromptRowTile
  int32_t rows = 0;           // multiple of kPromptRowTile, or up to n
  int64_t batch_row = 0;      // the first row in qkv and out
  PageSpan keys;              // >= ceil(n / 16) pages: position p is slot p
  ScoreOptions score;
  int32_t score_first_row = 0;  // rows before it are not scored
  // Positions `cache`: K is stored unrotated, and rotated when it is read (and
  // then rounded to the cache's type once more). Here a rank is a position.
  bool rank_positions = false;
};

struct PromptAttentionArgs {
  AttentionShape shape;  // of prompt pages: not kI8
  int32_t layer = 0;
  // [M, qkv_dim], unrotated; scratch of the call: undefined afterwards.
  float* qkv = nullptr;
  float* out = nullptr;  // [M, H d]
  std::span<const PromptAttentionItem> items;
};

// One layer of a prompt that is cut to its budget.
struct CompactLayer {
  PageSpan from;  // position p is slot p, as PromptAttention left it
  // >= ceil(min(k, n) / 16) pages; in place: the first of `from`, and these are
  // of shape `shape`.
  PageSpan to;
  // [G], backend memory, out: where the next token of each head goes, that is
  // min(k, n).
  int32_t* free_slot = nullptr;
};

// Cuts a prompt to its budget: one layer of it or, in scope `model`, all of
// them at once.
struct CompactArgs {
  AttentionShape shape;
  // The pages `from` are of shape.prompt(), and what is kept is rounded to the
  // cache's type; else they are of `shape`, and bytes are copied.
  bool from_prompt = false;
  int32_t prompt_tokens = 0;  // n
  int32_t budget = 0;         // k >= 1; >= n keeps everything
  int32_t recent = 0;         // w, 0 <= w <= k
  std::span<const CompactLayer> layers;
  // One choice for all heads of all `layers`, by the sum of their scores (in
  // order of layer, then head); false: each (layer, head) chooses for itself.
  bool shared = false;
  ScoreAge age = {};
  // Scores are multiplied first, in what is kept too: beams.
  float score_factor = 1.0F;
};

// One sequence feeding one token through one layer.
struct DecodeAttentionItem {
  int32_t position = 0;  // of the token; also the number of tokens seen before
  int32_t held = 0;      // live tokens per head before this step, <= k
  int32_t budget = 0;    // k; held + 1 <= k evicts nothing
  int32_t recent = 0;    // w
  PageSpan cache;        // >= ceil((held + 1) / 16) pages
  // [G], backend memory, in/out: the slot this token takes in each head, then
  // the one the next token will take: held + 1 if nothing was evicted, else the
  // victim's. Slots {0 .. held} less the free one are live, before and after.
  int32_t* free_slot = nullptr;
  ScoreOptions score;
  bool add_scores = true;  // decode_scores; false: a new token's score is 0
  ScoreAge age = {};
  // As in PromptAttentionItem: a key's rank is its place among the held tokens
  // in order of position; the query's is the last, `held`.
  bool rank_positions = false;
  // The token takes its slot and nothing leaves: free_slot stays as it is,
  // until Evict. Scopes `layer` and `model`, and beams.
  bool defer_eviction = false;
  // Beams: [G, held + 1] by slot, backend memory, out: what this row gives to
  // the scores (0 without add_scores), which AddRowScores adds; the scores in
  // the pages stay. Needs defer_eviction. Null: scores are added in the pages.
  float* row_scores = nullptr;
  // Quest: slot p is position p, nothing is scored or leaves, and slot i of
  // this list holds the smallest and the largest value of each K channel in
  // page i of `cache`; this token's page is brought up to date. >= ceil(pages /
  // 16) pages.
  PageSpan bounds = {};
  // Of each head: the newest, then those with the highest bounds, ties to the
  // earlier. 0, and all that there are: all.
  int32_t read_pages = 0;
  // A replay: this token follows that of the item before, in one sequence. The
  // tokens of such a run are appended before any of its rows attends, and each
  // row comes to what it would in a call of its own. A token's slot is its
  // position, nothing is scored or leaves; free_slot is the first token's, and
  // then the one after the last.
  bool continues = false;
};

struct DecodeAttentionArgs {
  AttentionShape shape;
  int32_t layer = 0;
  // [M, qkv_dim], unrotated; scratch of the call: undefined afterwards.
  float* qkv = nullptr;
  float* out = nullptr;                        // [M, H d]
  std::span<const DecodeAttentionItem> items;  // M, item i is row i
};

// The caches of one layer that hold one kept set in the same slots: a
// sequence's alone, or those of all beams of a request, which have pages in
// common. Positions and scores are the same in all.
struct SharedLayer {
  std::span<const PageSpan> caches;  // >= 1
  int32_t* free_slot = nullptr;      // [G], backend memory
};

// Adds the rows of all beams to the scores of a layer, in order: to those of
// the first cache, and the sums become the scores of all.
struct AddRowScoresArgs {
  AttentionShape shape;
  SharedLayer layer;
  int32_t held = 0;                          // before this step
  std::span<const float* const> row_scores;  // of DecodeAttentionItem
};

// Chooses what leaves after DecodeAttention has deferred it: as there, the
// lowest score outside the recent window.
struct EvictArgs {
  AttentionShape shape;
  int32_t position = 0;  // of the newest token
  int32_t held = 0;      // before this step
  int32_t budget = 0;    // k; held + 1 <= k evicts nothing
  int32_t recent = 0;    // w
  std::span<const SharedLayer> layers;
  bool shared = false;  // as in CompactArgs; slots are the same in all heads
  ScoreAge age = {};
};

struct PageCopy {
  int32_t from = 0;  // page numbers
  int32_t to = 0;
};

// What is held by one (layer, head): for reports and tests.
struct HeldTokens {
  std::vector<int32_t> positions;  // ascending
  std::vector<float> scores;
};

}  // namespace kf
