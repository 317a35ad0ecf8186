#include "tests/golden/pass_watch.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "kernels/core/status.h"

namespace kf::testing {
namespace {

constexpr size_t kMaxViolations = 8;
// Of the sum over a head's columns of float scores that have grown to
// thousands.
constexpr double kColumnTolerance = 2e-3;

}  // namespace

void PassWatch::Violate(std::string what) {
  if (counts_.violations.size() < kMaxViolations) {
    counts_.violations.push_back(std::move(what));
  }
}

PassWatch::Heads PassWatch::Read(const AttentionShape& shape,
                                 const PageSpan& cache,
                                 int32_t held,
                                 const int32_t* free_slot) {
  std::vector<int32_t> none;
  if (free_slot == nullptr) {
    none.assign(static_cast<size_t>(shape.kv_heads), held + 1);
    free_slot = none.data();
  }
  auto heads = ReadHeld(shape, cache, held, free_slot);
  if (!heads.ok()) {
    Violate(heads.status().ToString());
    return Heads(static_cast<size_t>(shape.kv_heads));
  }
  return *std::move(heads);
}

void PassWatch::CheckHeld(const Heads& heads,
                          int32_t held,
                          int32_t seen,
                          int32_t recent) {
  for (const HeldTokens& head : heads) {
    const std::vector<int32_t>& p = head.positions;
    if (p.size() != static_cast<size_t>(held)) {
      return Violate(absl::StrCat(p.size(), " tokens held, want ", held));
    }
    // Ascending without repetition, and no more than were seen.
    for (size_t i = 0; i < p.size(); ++i) {
      if (p[i] < 0 || p[i] >= seen || (i > 0 && p[i] <= p[i - 1])) {
        return Violate(absl::StrCat("position ", p[i], " of ", seen));
      }
    }
    const int32_t newest = std::min(recent, held);
    for (int32_t i = 0; i < newest; ++i) {
      if (p[p.size() - 1 - static_cast<size_t>(i)] != seen - 1 - i) {
        return Violate(absl::StrCat("recent position ", seen - 1 - i,
                                    " is gone, window ", recent));
      }
    }
  }
}

absl::Status PassWatch::Compact(const CompactArgs& args) {
  KF_RETURN_IF_ERROR(HookBackend::Compact(args));
  const int32_t held = std::min(args.budget, args.prompt_tokens);
  for (const CompactLayer& layer : args.layers) {
    CheckHeld(Read(args.shape, layer.to, held, layer.free_slot), held,
              args.prompt_tokens, args.recent);
    ++counts_.prompts;
  }
  return absl::OkStatus();
}

void PassWatch::CheckColumns(const DecodeAttentionArgs& args,
                             const DecodeAttentionItem& item,
                             const Heads& before) {
  const AttentionShape& shape = args.shape;
  const bool scored = item.score.enabled && item.add_scores;
  const double want =
      scored ? static_cast<double>(shape.query_heads) / shape.kv_heads : 0.0;
  const Heads after = Read(shape, item.cache, item.held, nullptr);
  const auto slots = static_cast<size_t>(item.held) + 1;
  for (size_t g = 0; g < after.size(); ++g) {
    std::vector<int32_t> expected = before[g].positions;
    expected.push_back(item.position);
    if (after[g].positions != expected) {
      return Violate(absl::StrCat("layer ", args.layer, " head ", g,
                                  " lost a token before it was time"));
    }
    double sum = 0.0;
    double least = 0.0;
    for (size_t i = 0; i < slots; ++i) {
      double given = 0.0;
      if (item.row_scores != nullptr) {
        given = static_cast<double>(item.row_scores[g * slots + i]);
      } else {
        // A new token starts from nothing.
        const float old = i < before[g].scores.size() ? before[g].scores[i] : 0;
        given =
            static_cast<double>(after[g].scores[i]) - static_cast<double>(old);
      }
      sum += given;
      least = std::min(least, given);
    }
    if (!(std::abs(sum - want) <= kColumnTolerance) || least < -1e-6) {
      return Violate(absl::StrCat("columns of position ", item.position,
                                  " add up to ", sum, ", want ", want,
                                  ", the least is ", least));
    }
    ++counts_.columns;
  }
}

absl::Status PassWatch::DecodeAttention(const DecodeAttentionArgs& args) {
  std::vector<DecodeAttentionItem> items(args.items.begin(), args.items.end());
  std::vector<Heads> before;
  for (DecodeAttentionItem& item : items) {
    before.push_back(Read(args.shape, item.cache, item.held, item.free_slot));
    if (item.bounds.pages.empty()) item.defer_eviction = true;
  }
  DecodeAttentionArgs deferred = args;
  deferred.items = items;
  KF_RETURN_IF_ERROR(HookBackend::DecodeAttention(deferred));
  for (size_t i = 0; i < items.size(); ++i) {
    const DecodeAttentionItem& item = args.items[i];
    CheckColumns(args, items[i], before[i]);
    if (item.defer_eviction || !items[i].defer_eviction) continue;
    const SharedLayer layer{.caches = {&item.cache, 1},
                            .free_slot = item.free_slot};
    KF_RETURN_IF_ERROR(Evict({.shape = args.shape,
                              .position = item.position,
                              .held = item.held,
                              .budget = item.budget,
                              .recent = item.recent,
                              .layers = {&layer, 1},
                              .age = item.age}));
  }
  return absl::OkStatus();
}

absl::Status PassWatch::Evict(const EvictArgs& args) {
  KF_RETURN_IF_ERROR(HookBackend::Evict(args));
  const int32_t held = std::min(args.budget, args.held + 1);
  for (const SharedLayer& layer : args.layers) {
    for (const PageSpan& cache : layer.caches) {
      CheckHeld(Read(args.shape, cache, held, layer.free_slot), held,
                args.position + 1, args.recent);
    }
    if (held == args.held) counts_.evicted += args.shape.kv_heads;
  }
  return absl::OkStatus();
}

}  // namespace kf::testing
