// What the sizes of docs/keyformer.md come to for one request.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "absl/status/status.h"
#include "engine/cache/cache_rules.h"
#include "engine/request.h"

namespace kf::engine {

struct RequestSizes {
  int32_t prompt_tokens = 0;   // n
  int32_t max_new_tokens = 0;  // T, cut to context - n
  bool cut_by_context = false;
  int32_t budget = 0;  // k; n + T for full
  int32_t recent = 0;  // w; n + T for full, 0 for quest
  CacheRules rules = {};
  int32_t sequences = 1;       // samples, or the beam width
  bool shares_prompt = false;  // several have the prompt's pages in common
  bool grows = false;          // takes its pages as its tokens come
};

// Fixes k, w and the rules of a request whose n and T are known.
// kInvalidArgument names the field of `cache`, its value and the limit.
absl::Status FixCacheSizes(const Request& request,
                           int32_t layers,
                           RequestSizes& sizes);

// One finite number >= 0 for each layer, mean 1 within 1e-6. Else
// kInvalidArgument names `field`, the value and the limit.
absl::Status CheckLayerWeights(std::string_view field,
                               std::span<const double> weights,
                               int32_t layers);

}  // namespace kf::engine
