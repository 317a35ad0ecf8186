#include "engine/cache/request_sizes.h"

#include <algorithm>
#include <cmath>
#include <string_view>
#include <vector>

#include "engine/cache/cache_plan.h"
#include "kernels/core/status.h"

namespace kf::engine {
namespace {

// More than any context; what is above counts as this.
constexpr int64_t kMaxBudget = int64_t{1} << 30;
// The mean of the layers' weights may be off by this much.
constexpr double kWeightTolerance = 1e-6;

// floor(share x whole), where a product that should be whole may fall a hair
// below it: 0.3 x 10.
int64_t FloorShare(double share, int64_t whole) {
  return static_cast<int64_t>(
      std::floor(share * static_cast<double>(whole) + 1e-9));
}

std::string_view NameOf(CachePolicy policy) {
  switch (policy) {
    case CachePolicy::kFull:
      return "FULL";
    case CachePolicy::kWindow:
      return "WINDOW";
    case CachePolicy::kH2O:
      return "H2O";
    case CachePolicy::kKeyformer:
      return "KEYFORMER";
    case CachePolicy::kQuest:
      return "QUEST";
  }
  return "unknown";
}

bool HasScores(CachePolicy policy) {
  return policy == CachePolicy::kH2O || policy == CachePolicy::kKeyformer;
}

// w of a budget; recent_tokens is cut to it, for a layer whose share is smaller
// than k.
int64_t RecentOf(const CacheOptions& c, int64_t budget) {
  if (c.policy == CachePolicy::kWindow) {
    return budget - std::min<int64_t>(c.sinks, budget - 1);
  }
  if (c.recent_tokens.has_value()) {
    return std::min<int64_t>(*c.recent_tokens, budget);
  }
  return FloorShare(c.recent_ratio, budget);
}

absl::Status CheckWeights(const CacheOptions& c, int32_t layers) {
  constexpr std::string_view kField = "cache.layer_weights";
  KF_RETURN_IF_ERROR(CheckLayerWeights(kField, c.layer_weights, layers));
  if (c.policy == CachePolicy::kFull || c.policy == CachePolicy::kQuest) {
    return absl::InvalidArgumentError(
        absl::StrCat(ToAbsl(kField), ": policy ", ToAbsl(NameOf(c.policy)),
                     " evicts nothing, want WINDOW, H2O or KEYFORMER"));
  }
  if (HasScores(c.policy) && c.scope == SelectionScope::kModel) {
    return absl::InvalidArgumentError(absl::StrCat(
        ToAbsl(kField),
        ": cache.scope is MODEL, one set for all layers, want HEAD or LAYER"));
  }
  return absl::OkStatus();
}

absl::Status FixBudget(const CacheOptions& c, RequestSizes& sizes) {
  const int64_t n = sizes.prompt_tokens;
  const int64_t total = n + sizes.max_new_tokens;
  int64_t k = 0;
  if (c.policy == CachePolicy::kFull) {
    k = total;
  } else if (c.tokens.has_value()) {
    k = *c.tokens;
  } else {
    const int64_t basis = c.basis == BudgetBasis::kTotal ? total : n;
    k = std::max<int64_t>(FloorShare(c.ratio, basis), c.min_tokens);
  }
  if (HasScores(c.policy) && c.recent_tokens.has_value() &&
      *c.recent_tokens > k) {
    return absl::InvalidArgumentError(
        absl::StrCat("cache.recent_tokens: ", *c.recent_tokens,
                     ", want at most the budget of ", k, " tokens"));
  }
  int64_t w = 0;
  if (c.policy == CachePolicy::kFull) {
    w = k;
  } else if (c.policy != CachePolicy::kQuest) {
    w = RecentOf(c, k);
  }
  sizes.budget = static_cast<int32_t>(std::min(k, kMaxBudget));
  sizes.recent = static_cast<int32_t>(std::min(w, kMaxBudget));
  return absl::OkStatus();
}

std::vector<LayerSize> FixLayerSizes(const CacheOptions& c,
                                     const RequestSizes& sizes) {
  const int32_t total = sizes.prompt_tokens + sizes.max_new_tokens;
  if (c.policy == CachePolicy::kQuest) return {{total, total}};
  if (c.layer_weights.empty()) return {{sizes.budget, sizes.recent}};
  std::vector<LayerSize> layers;
  for (const double weight : c.layer_weights) {
    const int64_t k = std::min<int64_t>(
        std::max<int64_t>(FloorShare(weight, sizes.budget), 1), total);
    layers.push_back(
        {static_cast<int32_t>(k), static_cast<int32_t>(RecentOf(c, k))});
  }
  return layers;
}

bool NeedsScores(const Request& request, const RequestSizes& sizes) {
  if (!HasScores(request.cache.policy)) return false;
  if (request.cache_report == CacheReportDetail::kFull) return true;
  // n + T - 1 tokens are fed in all: with room for them nothing is evicted.
  const int64_t fed =
      int64_t{sizes.prompt_tokens} + std::max(sizes.max_new_tokens, 1) - 1;
  const bool evicts =
      std::any_of(sizes.rules.sizes.begin(), sizes.rules.sizes.end(),
                  [&](const LayerSize& size) { return size.budget < fed; });
  // T = 1 runs no decode step: what is held then is of use to a report alone.
  return evicts && (sizes.max_new_tokens > 1 ||
                    request.cache_report != CacheReportDetail::kNone);
}

}  // namespace

absl::Status CheckLayerWeights(std::string_view field,
                               std::span<const double> weights,
                               int32_t layers) {
  const auto refuse = [field](const auto&... what) {
    return absl::InvalidArgumentError(absl::StrCat(ToAbsl(field), what...));
  };
  if (weights.size() != static_cast<size_t>(layers)) {
    return refuse(": ", weights.size(), " numbers, want one for each of the ",
                  layers, " layers");
  }
  double sum = 0.0;
  for (size_t i = 0; i < weights.size(); ++i) {
    // NaN fails the comparison too.
    if (!(weights[i] >= 0.0) || !std::isfinite(weights[i])) {
      return refuse("[", i, "]: ", weights[i], ", want a finite number >= 0");
    }
    sum += weights[i];
  }
  const double mean = sum / layers;
  if (!(std::abs(mean - 1.0) <= kWeightTolerance)) {
    return refuse(": their mean is ", mean, ", want 1 (within 1e-6)");
  }
  return absl::OkStatus();
}

absl::Status FixCacheSizes(const Request& request,
                           int32_t layers,
                           RequestSizes& sizes) {
  const CacheOptions& c = request.cache;
  if (!c.layer_weights.empty()) KF_RETURN_IF_ERROR(CheckWeights(c, layers));
  KF_RETURN_IF_ERROR(FixBudget(c, sizes));
  const int32_t n = sizes.prompt_tokens;
  CacheRules& r = sizes.rules;
  r.sizes = FixLayerSizes(c, sizes);
  r.scored = NeedsScores(request, sizes);
  if (r.scored) {
    r.scope = c.scope;
    r.age = c.score_norm == ScoreNorm::kAge;
  } else if (HasScores(c.policy)) {
    // Nothing to choose by, and nobody to see it: the latest tokens.
    for (LayerSize& size : r.sizes) size.recent = size.budget;
  }
  r.prompt_rows = static_cast<int32_t>(
      c.score_queries == 0
          ? static_cast<uint32_t>(n)
          : std::min(c.score_queries, static_cast<uint32_t>(n)));
  r.rank_positions = c.positions == CachePositions::kCache &&
                     c.policy != CachePolicy::kFull &&
                     c.policy != CachePolicy::kQuest;
  if (request.beam.has_value()) {
    r.width = static_cast<int32_t>(request.beam->width);
  }
  if (c.policy == CachePolicy::kQuest) {
    const int32_t pages = CeilDiv(sizes.budget, kPageTokens);
    const bool all = pages >= CeilDiv(n + sizes.max_new_tokens, kPageTokens);
    r.read_pages = all ? 0 : pages;
    r.full_layers = static_cast<int32_t>(
        std::min(c.full_layers, static_cast<uint32_t>(layers)));
  }
  return absl::OkStatus();
}

}  // namespace kf::engine
