// Where one sequence's keys and values are: a page list per layer, and one free
// slot per layer and kv head.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "engine/cache/cache_rules.h"
#include "engine/cache/page_pool.h"
#include "engine/cache/request_sizes.h"
#include "kernels/backend.h"

namespace kf::engine {

struct SequenceCache {
  std::byte* base = nullptr;                      // of the pool
  std::vector<std::vector<int32_t>> pages;        // [layers][pages of a layer]
  std::vector<std::vector<int32_t>> bound_pages;  // [layers], quest's; or empty
  // [layers, G], backend memory. Beams of one request have it in common: their
  // caches hold one kept set, in the same slots.
  int32_t* free_slots = nullptr;
  int32_t kv_heads = 0;  // G

  CacheRules rules;
  int32_t prompt_tokens = 0;  // n
  int32_t fed = 0;            // generated tokens fed so far

  PageSpan span(int32_t layer) const {
    return {base, pages[static_cast<size_t>(layer)]};
  }
  PageSpan bounds(int32_t layer) const {
    return {base, bound_pages[static_cast<size_t>(layer)]};
  }
  int32_t* free_slot(int32_t layer) const {
    return free_slots + int64_t{layer} * kv_heads;
  }
  // Tokens seen, and live ones per head of a layer, between steps.
  int32_t seen() const { return prompt_tokens + fed; }
  int32_t held(int32_t layer) const {
    return std::min(rules.size(layer).budget, seen());
  }
  // Of the layer that holds the most.
  int32_t most_held() const;
  // Tokens of each head that are gone once `more` tokens have been fed; the
  // mean over layers.
  int32_t evicted(int32_t more = 0) const;
};

// Gives a sequence that does not grow the pages that it needs for its prompt.
// The pool has them.
void TakePages(const RequestSizes& sizes,
               int32_t layers,
               PagePool& pool,
               SequenceCache& cache);
// After the prompt: gives back what its kept set does not need, and says how
// many pages that was.
int64_t ReturnPromptPages(const RequestSizes& sizes,
                          PagePool& pool,
                          SequenceCache& cache);
// Of a sequence that grows: gives it room for `tokens` tokens, the prompt's
// included, if it has not. The pool has the pages.
void GrowPages(int32_t tokens, PagePool& pool, SequenceCache& cache);
void GivePages(PagePool& pool, SequenceCache& cache);

}  // namespace kf::engine
