// How one sequence's cache is kept, fixed when its request is checked: what
// each layer holds, and how that is chosen (docs/keyformer.md). Only what the
// request's policy reads is set.
#pragma once

#include <cstdint>
#include <vector>

#include "engine/request.h"

namespace kf::engine {

// Of one layer, in tokens.
struct LayerSize {
  int32_t budget = 0;  // k_l >= 1; n + T and more: nothing is evicted
  int32_t recent = 0;  // w_l, 0 <= w_l <= k_l

  bool operator==(const LayerSize&) const = default;
};

struct CacheRules {
  // [1], the same for all layers, or [layers].
  std::vector<LayerSize> sizes;
  // Whether scores are computed: for choosing what a decode step will attend
  // to, or for a report. Without them w_l covers all that may be chosen.
  bool scored = false;
  SelectionScope scope = SelectionScope::kHead;
  bool rank_positions = false;
  // Score norm `age`, and the prompt rows that are scored, from 1 to n.
  bool age = false;
  int32_t prompt_rows = 0;
  // Beams that share the kept set: the prompt's scores count so many times.
  int32_t width = 1;
  // Quest: pages that a decode step reads of each head, 0: all; layers before
  // full_layers read all.
  int32_t read_pages = 0;
  int32_t full_layers = 0;

  LayerSize size(int32_t layer) const {
    return sizes[sizes.size() == 1 ? 0 : static_cast<size_t>(layer)];
  }
  // Whether the layer's pages have bounds, and are read by them.
  bool bounded(int32_t layer) const {
    return read_pages > 0 && layer >= full_layers;
  }
};

}  // namespace kf::engine
