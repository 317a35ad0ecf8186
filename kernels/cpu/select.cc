// Cuts a prompt's layer to its budget.
#include <algorithm>
#include <array>
#include <bit>
#include <cstring>

#include "kernels/core/status.h"
#include "kernels/cpu/attention.h"
#include "kernels/cpu/attention_layout.h"

namespace kf::cpu {
namespace {

// Ascending order of the result is descending score, then ascending position,
// and total whatever the bits (NaN included).
uint64_t RankKey(float score, int32_t position) {
  const auto bits = std::bit_cast<uint32_t>(score + 0.0F);  // -0 becomes 0
  const uint32_t ascending = (bits >> 31) != 0 ? ~bits : bits | 0x80000000U;
  return (uint64_t{~ascending} << 32) | static_cast<uint32_t>(position);
}

// Writes the kept positions of a head, ascending, to kept[0, budget).
void SelectHead(const HeadLayout& layout,
                const HeadPages& from,
                int32_t tokens,
                int32_t budget,
                int32_t recent,
                uint64_t* keys,
                int32_t* kept) {
  const int32_t older = tokens - recent;
  const int32_t best = budget - recent;
  for (int32_t p = 0; p < older; ++p) {
    const float* scores = ScoresOf(layout, BlockOf(from, p / kPageTokens));
    keys[p] = RankKey(scores[p % kPageTokens], p);
  }
  if (best > 0) std::nth_element(keys, keys + best - 1, keys + older);
  for (int32_t i = 0; i < best; ++i) {
    kept[i] = static_cast<int32_t>(static_cast<uint32_t>(keys[i]));
  }
  std::sort(kept, kept + best);
  for (int32_t i = 0; i < recent; ++i) kept[best + i] = older + i;
}

// Fills one page of the new list with `count` tokens of the old one.
void CopyPage(const HeadLayout& layout,
              const HeadPages& from,
              const int32_t* positions,
              int32_t count,
              unsigned char* to) {
  std::array<const unsigned char*, kPageTokens> source = {};
  for (int32_t j = 0; j < count; ++j) {
    const int32_t p = positions[j];
    unsigned char* block = BlockOf(from, p / kPageTokens);
    const int32_t slot = p % kPageTokens;
    source[static_cast<size_t>(j)] = block + slot * 4;
    const int64_t row_bytes = int64_t{layout.d} * (layout.bf16 ? 2 : 4);
    std::memcpy(to + layout.v_offset + j * row_bytes,
                block + layout.v_offset + slot * row_bytes,
                static_cast<size_t>(row_bytes));
    PositionsOf(layout, to)[j] = PositionsOf(layout, block)[slot];
    ScoresOf(layout, to)[j] = ScoresOf(layout, block)[slot];
  }
  // K is stored by steps; a slot's word of each step moves on its own.
  for (int64_t step = 0; step < layout.steps; ++step) {
    for (int32_t j = 0; j < count; ++j) {
      std::memcpy(to + (step * kPageTokens + j) * 4,
                  source[static_cast<size_t>(j)] + step * kPageTokens * 4, 4);
    }
  }
}

}  // namespace

absl::Status Compact(AttentionContext& context, const CompactArgs& args) {
  const AttentionShape& shape = args.shape;
  const HeadLayout layout = MakeHeadLayout(shape);
  const int32_t n = args.prompt_tokens;
  const int32_t kept = std::min(args.budget, n);
  KF_CHECK(n >= 1 && args.budget >= 1);
  KF_CHECK(args.recent >= 0 && args.recent <= args.budget);
  KF_CHECK(std::ssize(args.layers[0].from.pages) >= PagesFor(n));
  KF_CHECK(std::ssize(args.layers[0].to.pages) >= PagesFor(kept));
  context.scratch.Reset();
  KF_ASSIGN_OR_RETURN(uint64_t * keys, context.scratch.Take<uint64_t>(
                                           int64_t{shape.kv_heads} * n));
  KF_ASSIGN_OR_RETURN(int32_t * positions, context.scratch.Take<int32_t>(
                                               int64_t{shape.kv_heads} * kept));
  context.pool.ParallelFor(shape.kv_heads, [&](int64_t g, int /*worker*/) {
    const auto head = static_cast<int32_t>(g);
    const HeadPages from = MakeHeadPages(shape, args.layers[0].from, head);
    const HeadPages to = MakeHeadPages(shape, args.layers[0].to, head);
    int32_t* chosen = positions + g * kept;
    // A budget of the whole prompt keeps it: every token counts as recent.
    SelectHead(layout, from, n, kept, kept < n ? args.recent : n, keys + g * n,
               chosen);
    for (int32_t slot = 0; slot < kept; slot += kPageTokens) {
      CopyPage(layout, from, chosen + slot, std::min(kPageTokens, kept - slot),
               BlockOf(to, slot / kPageTokens));
    }
    args.layers[0].free_slot[g] = kept;
  });
  return absl::OkStatus();
}

}  // namespace kf::cpu
