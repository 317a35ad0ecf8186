// Who stays and who goes: cutting a prompt, evicting, and the traps' ghosts.
#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <utility>

#include "kernels/core/bf16.h"
#include "kernels/core/status.h"
#include "kernels/ref/ref_attention.h"
#include "kernels/ref/ref_page.h"

namespace kf::ref {

double Rank(double score, const ScoreAge& age, int32_t position) {
  if (std::isnan(score)) return std::numeric_limits<double>::infinity();
  return age.enabled ? score / age.RowsThatSaw(position) : score;
}

void Attention::AddScore(float& score, double value) const {
  score = static_cast<float>(static_cast<double>(score) + value);
  if (trap_ == Trap::kBf16Scores) score = Bf16ToFloat(FloatToBf16(score));
}

void Attention::AddGhost(const AttentionShape& shape,
                         const PageSpan& cache,
                         int32_t head,
                         const PageSpan& from,
                         int32_t slot) {
  const Slot s = SlotAt(shape, from, head, slot);
  const std::byte* key =
      reinterpret_cast<const std::byte*>(SlotAt(shape, cache, 0, 0).k);
  ghosts_[{key, head}].push_back({{s.k, s.k + shape.head_dim},
                                  {s.v, s.v + shape.head_dim},
                                  *s.position,
                                  *s.score});
}

void Attention::ForgetGhosts(const AttentionShape& shape,
                             const PageSpan& cache) {
  if (ghosts_.empty()) return;
  const std::byte* key =
      reinterpret_cast<const std::byte*>(SlotAt(shape, cache, 0, 0).k);
  for (int32_t g = 0; g < shape.kv_heads; ++g) ghosts_.erase({key, g});
}

std::vector<Slot> Attention::HeldSlots(const AttentionShape& shape,
                                       const PageSpan& cache,
                                       int32_t slots,
                                       int32_t head) {
  std::vector<Slot> held;
  held.reserve(static_cast<size_t>(slots));
  for (int32_t s = 0; s < slots; ++s) {
    held.push_back(SlotAt(shape, cache, head, s));
  }
  const auto first =
      reinterpret_cast<const std::byte*>(SlotAt(shape, cache, 0, 0).k);
  if (const auto it = ghosts_.find({first, head}); it != ghosts_.end()) {
    for (Ghost& ghost : it->second) {
      held.push_back(
          {ghost.k.data(), ghost.v.data(), &ghost.position, &ghost.score});
    }
  }
  return held;
}

std::vector<bool> Attention::Choose(const CompactArgs& args,
                                    const std::vector<double>& ranks) const {
  const int32_t n = args.prompt_tokens;
  const int32_t kept = std::min(args.budget, n);
  const int32_t older = n - std::min(args.recent, n);
  std::vector<int32_t> best(static_cast<size_t>(older));
  std::iota(best.begin(), best.end(), 0);
  if (kept < n) {
    if (trap_ == Trap::kDropLeavingWindow) best.pop_back();
    std::stable_sort(best.begin(), best.end(), [&](int32_t a, int32_t b) {
      return ranks[static_cast<size_t>(a)] > ranks[static_cast<size_t>(b)];
    });
    best.resize(static_cast<size_t>(kept - args.recent));
  }
  std::vector<bool> keep(static_cast<size_t>(n), false);
  for (const int32_t i : best) keep[static_cast<size_t>(i)] = true;
  for (int32_t i = older; i < n; ++i) keep[static_cast<size_t>(i)] = true;
  return keep;
}

void Attention::MoveHead(const CompactArgs& args,
                         const CompactLayer& layer,
                         int32_t head,
                         const std::vector<bool>& keep) {
  const AttentionShape& shape = args.shape;
  int32_t to = 0;
  for (int32_t i = 0; i < args.prompt_tokens; ++i) {
    if (keep[static_cast<size_t>(i)]) {
      const Slot a = SlotAt(shape, layer.from, head, i);
      const Slot b = SlotAt(shape, layer.to, head, to++);
      const auto d = static_cast<size_t>(shape.head_dim);
      if (args.from_prompt) {
        KF_CHECK(a.k != b.k);
        StoreVector({a.k, d}, shape.cache_dtype, b.k);
        StoreVector({a.v, d}, shape.cache_dtype, b.v);
      } else if (a.k != b.k) {
        std::copy_n(a.k, d, b.k);
        std::copy_n(a.v, d, b.v);
      }
      *b.position = *a.position;
      *b.score = *a.score * args.score_factor;
    } else if (trap_ == Trap::kRecentZeroOff && args.recent == 0) {
      AddGhost(shape, layer.to, head, layer.from, i);
    }
  }
  layer.free_slot[head] = to;
}

void Attention::Compact(const CompactArgs& args) {
  const AttentionShape& shape = args.shape;
  const int32_t n = args.prompt_tokens;
  KF_CHECK(args.budget >= 1 && args.recent >= 0 && args.recent <= args.budget);
  // Pages of all types are laid out alike.
  const auto score_of = [&](const CompactLayer& layer, int32_t g, int32_t i) {
    return static_cast<double>(*SlotAt(shape, layer.from, g, i).score *
                               args.score_factor);
  };
  std::vector<double> sums(static_cast<size_t>(n), 0.0);
  for (const CompactLayer& layer : args.layers) {
    ForgetGhosts(shape, layer.to);
    for (int32_t g = 0; g < shape.kv_heads; ++g) {
      for (int32_t i = 0; i < n; ++i) {
        sums[static_cast<size_t>(i)] += score_of(layer, g, i);
      }
    }
  }
  std::vector<double> ranks(static_cast<size_t>(n));
  for (const CompactLayer& layer : args.layers) {
    for (int32_t g = 0; g < shape.kv_heads; ++g) {
      for (int32_t i = 0; i < n; ++i) {
        const auto at = static_cast<size_t>(i);
        ranks[at] =
            Rank(args.shared ? sums[at] : score_of(layer, g, i), args.age, i);
      }
      MoveHead(args, layer, g, Choose(args, ranks));
    }
  }
}

int32_t Attention::FindVictim(const std::vector<Candidate>& candidates,
                              int32_t position,
                              int32_t recent) const {
  const bool drop_latest =
      trap_ == Trap::kDropLeavingWindow || trap_ == Trap::kFrozenKeys;
  int32_t victim = -1;
  for (int32_t s = 0; s < std::ssize(candidates); ++s) {
    const Candidate& a = candidates[static_cast<size_t>(s)];
    if (a.position > position - recent) continue;
    if (victim < 0) {
      victim = s;
      continue;
    }
    const Candidate& b = candidates[static_cast<size_t>(victim)];
    const bool later = a.position > b.position;
    const bool worse =
        drop_latest ? later : a.rank < b.rank || (a.rank == b.rank && later);
    if (worse) victim = s;
  }
  KF_CHECK(victim >= 0);
  return victim;
}

void Attention::AddRowScores(const AddRowScoresArgs& args) const {
  const auto& caches = args.layer.caches;
  for (int32_t g = 0; g < args.shape.kv_heads; ++g) {
    for (int32_t s = 0; s <= args.held; ++s) {
      float score = *SlotAt(args.shape, caches[0], g, s).score;
      for (const float* row : args.row_scores) {
        AddScore(score, static_cast<double>(row[g * (args.held + 1) + s]));
      }
      // Read from one cache and set in all: a page in common gets it once.
      for (const PageSpan& cache : caches) {
        *SlotAt(args.shape, cache, g, s).score = score;
      }
    }
  }
}

void Attention::Evict(const EvictArgs& args) const {
  const AttentionShape& shape = args.shape;
  const auto slots = static_cast<size_t>(args.held) + 1;
  KF_CHECK(args.held >= 0 && args.held <= args.budget);
  KF_CHECK(args.recent >= 0 && args.recent <= args.budget);
  const auto slot_of = [&](const SharedLayer& layer, int32_t g, size_t s) {
    return SlotAt(shape, layer.caches[0], g, static_cast<int32_t>(s));
  };
  std::vector<double> sums(slots, 0.0);
  for (const SharedLayer& layer : args.layers) {
    for (int32_t g = 0; g < shape.kv_heads; ++g) {
      for (size_t s = 0; s < slots; ++s) {
        sums[s] += static_cast<double>(*slot_of(layer, g, s).score);
      }
    }
  }
  for (const SharedLayer& layer : args.layers) {
    for (int32_t g = 0; g < shape.kv_heads; ++g) {
      if (args.held + 1 <= args.budget) {
        layer.free_slot[g] = args.held + 1;
        continue;
      }
      std::vector<Candidate> candidates;
      for (size_t s = 0; s < slots; ++s) {
        const Slot slot = slot_of(layer, g, s);
        const double score =
            args.shared ? sums[s] : static_cast<double>(*slot.score);
        candidates.push_back(
            {*slot.position, Rank(score, args.age, *slot.position)});
      }
      layer.free_slot[g] = FindVictim(candidates, args.position, args.recent);
    }
  }
}

std::vector<HeldTokens> Attention::ReadHeld(const AttentionShape& shape,
                                            const PageSpan& cache,
                                            int32_t held,
                                            const int32_t* free_slot) const {
  std::vector<HeldTokens> result;
  for (int32_t g = 0; g < shape.kv_heads; ++g) {
    std::vector<std::pair<int32_t, float>> tokens;
    for (int32_t s = 0; s <= held; ++s) {
      if (s == free_slot[g]) continue;
      const Slot slot = SlotAt(shape, cache, g, s);
      tokens.emplace_back(*slot.position, *slot.score);
    }
    const auto first =
        reinterpret_cast<const std::byte*>(SlotAt(shape, cache, 0, 0).k);
    if (const auto it = ghosts_.find({first, g}); it != ghosts_.end()) {
      for (const Ghost& ghost : it->second) {
        tokens.emplace_back(ghost.position, ghost.score);
      }
    }
    std::sort(tokens.begin(), tokens.end());
    HeldTokens& head = result.emplace_back();
    for (const auto& [position, score] : tokens) {
      head.positions.push_back(position);
      head.scores.push_back(score);
    }
  }
  return result;
}

}  // namespace kf::ref
