// Where one sequence's keys and values are: a page list per layer, and one free
// slot per layer and kv head.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "kernels/backend.h"

namespace kf::engine {

struct SequenceCache {
  std::byte* base = nullptr;                // of the pool
  std::vector<std::vector<int32_t>> pages;  // [layers][pages of a layer]
  int32_t* free_slots = nullptr;            // [layers, G], backend memory
  int32_t kv_heads = 0;                     // G

  int32_t prompt_tokens = 0;  // n
  int32_t budget = 0;         // k
  int32_t recent = 0;         // w
  int32_t fed = 0;            // generated tokens fed so far

  PageSpan span(int32_t layer) const {
    return {base, pages[static_cast<size_t>(layer)]};
  }
  int32_t* free_slot(int32_t layer) const {
    return free_slots + int64_t{layer} * kv_heads;
  }
  // Tokens seen, and live ones per (layer, head), between steps.
  int32_t seen() const { return prompt_tokens + fed; }
  int32_t held() const { return std::min(budget, seen()); }
  int32_t evicted() const { return seen() - held(); }
};

}  // namespace kf::engine
