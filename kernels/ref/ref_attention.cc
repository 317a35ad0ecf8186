#include "kernels/ref/ref_attention.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include "kernels/core/bf16.h"
#include "kernels/core/status.h"
#include "kernels/ref/ref_page.h"

namespace kf::ref {
namespace {

float Stored(float x, DType dtype) {
  return dtype == DType::kBF16 ? Bf16ToFloat(FloatToBf16(x)) : x;
}

// Rotates the adjacent pairs of each head's leading channels in one fused row
// [Q | K | V], in f32 with angles in double: the same arithmetic as the fast
// back ends, so that rounding K to bf16 gives the same bits.
void RotateRow(const AttentionShape& shape, int32_t position, float* row) {
  for (int32_t i = 0; i < shape.rotary_dim; i += 2) {
    const double angle =
        position *
        std::pow(shape.rope_base, -static_cast<double>(i) / shape.rotary_dim);
    const auto c = static_cast<float>(std::cos(angle));
    const auto s = static_cast<float>(std::sin(angle));
    for (int32_t h = 0; h < shape.query_heads + shape.kv_heads; ++h) {
      float* x = row + int64_t{h} * shape.head_dim + i;
      const float a = x[0];
      const float b = x[1];
      x[0] = a * c - b * s;
      x[1] = a * s + b * c;
    }
  }
}

// Writes one head's K and V of a rotated row; the score starts at 0.
void Append(const AttentionShape& shape,
            const float* row,
            int32_t head,
            int32_t position,
            const Slot& to) {
  const float* k = row + int64_t{shape.query_heads + head} * shape.head_dim;
  const float* v = k + int64_t{shape.kv_heads} * shape.head_dim;
  for (int32_t c = 0; c < shape.head_dim; ++c) {
    to.k[c] = Stored(k[c], shape.cache_dtype);
    to.v[c] = Stored(v[c], shape.cache_dtype);
  }
  *to.position = position;
  *to.score = 0.0F;
}

double Logit(const AttentionShape& shape, const float* q, const float* k) {
  double sum = 0.0;
  for (int32_t c = 0; c < shape.head_dim; ++c) {
    sum += static_cast<double>(Stored(q[c], shape.cache_dtype)) *
           static_cast<double>(k[c]);
  }
  return sum / std::sqrt(static_cast<double>(shape.head_dim));
}

void SoftmaxInPlace(std::vector<double>& x) {
  const double top = *std::max_element(x.begin(), x.end());
  for (double& v : x) v = std::exp(v - top);
  const double sum = std::accumulate(x.begin(), x.end(), 0.0);
  for (double& v : x) v /= sum;
}

// out = softmax(logits) V.
void Attend(const AttentionShape& shape,
            std::vector<double> logits,
            const std::vector<Slot>& keys,
            float* out) {
  SoftmaxInPlace(logits);
  for (int32_t c = 0; c < shape.head_dim; ++c) {
    double sum = 0.0;
    for (size_t i = 0; i < keys.size(); ++i) {
      sum += logits[i] * static_cast<double>(keys[i].v[c]);
    }
    out[c] = static_cast<float>(sum);
  }
}

// softmax((x + zeta) / tau) of one row.
std::vector<double> NoisySoftmax(std::vector<double> logits,
                                 const std::vector<Slot>& keys,
                                 const ScoreOptions& score,
                                 int32_t query,
                                 int32_t layer,
                                 int32_t query_head) {
  const NoiseRow row = MakeNoiseRow(
      score.seed,
      score.resample_once ? kEveryQuery : static_cast<uint32_t>(query),
      static_cast<uint32_t>(layer), static_cast<uint32_t>(query_head),
      score.stream);
  for (size_t i = 0; i < keys.size(); ++i) {
    const auto key = static_cast<uint32_t>(*keys[i].position);
    logits[i] = (logits[i] + NoiseZeta(score.noise, row, key)) /
                static_cast<double>(score.tau);
  }
  SoftmaxInPlace(logits);
  return logits;
}

}  // namespace

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

void Attention::Prompt(const PromptAttentionArgs& args) {
  const AttentionShape& shape = args.shape;
  const int32_t group = shape.query_heads / shape.kv_heads;
  for (const PromptAttentionItem& item : args.items) {
    KF_CHECK(item.first_row % kPromptRowTile == 0);
    const int32_t end = item.first_row + item.rows;
    const auto row_of = [&](int32_t p) {
      return args.qkv + (item.batch_row + p - item.first_row) * shape.qkv_dim();
    };
    for (int32_t p = item.first_row; p < end; ++p) {
      RotateRow(shape, p, row_of(p));
      for (int32_t g = 0; g < shape.kv_heads; ++g) {
        Append(shape, row_of(p), g, p, SlotAt(shape, item.keys, g, p));
      }
    }
    for (int32_t p = item.first_row; p < end; ++p) {
      for (int32_t h = 0; h < shape.query_heads; ++h) {
        std::vector<Slot> keys;
        std::vector<double> logits;
        const float* q = row_of(p) + int64_t{h} * shape.head_dim;
        for (int32_t i = 0; i <= p; ++i) {
          keys.push_back(SlotAt(shape, item.keys, h / group, i));
          logits.push_back(Logit(shape, q, keys.back().k));
        }
        Attend(shape, logits, keys,
               args.out +
                   (item.batch_row + p - item.first_row) * shape.out_dim() +
                   int64_t{h} * shape.head_dim);
        if (!item.score.enabled || p < item.score_first_row) continue;
        const std::vector<double> column =
            NoisySoftmax(logits, keys, item.score, p, args.layer, h);
        for (size_t i = 0; i < keys.size(); ++i) {
          AddScore(*keys[i].score, column[i]);
        }
      }
    }
  }
}

void Attention::Compact(const CompactArgs& args) {
  const AttentionShape& shape = args.shape;
  const int32_t n = args.prompt_tokens;
  const int32_t kept = std::min(args.budget, n);
  KF_CHECK(args.budget >= 1 && args.recent >= 0 && args.recent <= args.budget);
  ForgetGhosts(shape, args.layers[0].to);
  for (int32_t g = 0; g < shape.kv_heads; ++g) {
    const int32_t older = n - std::min(args.recent, n);
    std::vector<int32_t> best(static_cast<size_t>(older));
    std::iota(best.begin(), best.end(), 0);
    const auto score_of = [&](int32_t i) {
      return *SlotAt(shape, args.layers[0].from, g, i).score;
    };
    if (kept < n) {
      if (trap_ == Trap::kDropLeavingWindow) best.pop_back();
      std::stable_sort(best.begin(), best.end(), [&](int32_t a, int32_t b) {
        return score_of(a) > score_of(b);
      });
      best.resize(static_cast<size_t>(kept - args.recent));
      std::sort(best.begin(), best.end());
    }
    std::vector<bool> keep(static_cast<size_t>(n), false);
    for (const int32_t i : best) keep[static_cast<size_t>(i)] = true;
    for (int32_t i = older; i < n; ++i) keep[static_cast<size_t>(i)] = true;
    int32_t to = 0;
    for (int32_t i = 0; i < n; ++i) {
      if (keep[static_cast<size_t>(i)]) {
        const Slot a = SlotAt(shape, args.layers[0].from, g, i);
        const Slot b = SlotAt(shape, args.layers[0].to, g, to++);
        std::copy_n(a.k, shape.head_dim, b.k);
        std::copy_n(a.v, shape.head_dim, b.v);
        *b.position = *a.position;
        *b.score = *a.score;
      } else if (trap_ == Trap::kRecentZeroOff && args.recent == 0) {
        AddGhost(shape, args.layers[0].to, g, args.layers[0].from, i);
      }
    }
    KF_CHECK(to == kept);
    args.layers[0].free_slot[g] = kept;
  }
}

void Attention::Decode(const DecodeAttentionArgs& args) {
  for (size_t row = 0; row < args.items.size(); ++row) DecodeItem(args, row);
}

void Attention::DecodeItem(const DecodeAttentionArgs& args, size_t row) {
  const AttentionShape& shape = args.shape;
  const DecodeAttentionItem& item = args.items[row];
  const int32_t group = shape.query_heads / shape.kv_heads;
  float* qkv = args.qkv + static_cast<int64_t>(row) * shape.qkv_dim();
  float* out = args.out + static_cast<int64_t>(row) * shape.out_dim();
  RotateRow(shape, item.position, qkv);
  for (int32_t g = 0; g < shape.kv_heads; ++g) {
    Append(shape, qkv, g, item.position,
           SlotAt(shape, item.cache, g, item.free_slot[g]));
    std::vector<Slot> keys;
    for (int32_t s = 0; s <= item.held; ++s) {
      keys.push_back(SlotAt(shape, item.cache, g, s));
    }
    const auto first =
        reinterpret_cast<const std::byte*>(SlotAt(shape, item.cache, 0, 0).k);
    if (const auto it = ghosts_.find({first, g}); it != ghosts_.end()) {
      for (Ghost& ghost : it->second) {
        keys.push_back(
            {ghost.k.data(), ghost.v.data(), &ghost.position, &ghost.score});
      }
    }
    for (int32_t h = g * group; h < (g + 1) * group; ++h) {
      std::vector<double> logits;
      for (const Slot& key : keys) {
        logits.push_back(
            Logit(shape, qkv + int64_t{h} * shape.head_dim, key.k));
      }
      Attend(shape, logits, keys, out + int64_t{h} * shape.head_dim);
      if (!item.score.enabled || !item.add_scores) continue;
      const std::vector<double> column =
          NoisySoftmax(logits, keys, item.score, item.position, args.layer, h);
      for (size_t i = 0; i < keys.size(); ++i) {
        AddScore(*keys[i].score, column[i]);
      }
    }
    if (item.held + 1 <= item.budget) {
      item.free_slot[g] = item.held + 1;
      continue;
    }
    // The lowest score outside the recent window; ties: the latest position.
    const bool drop_latest =
        trap_ == Trap::kDropLeavingWindow || trap_ == Trap::kFrozenKeys;
    int32_t victim = -1;
    for (int32_t s = 0; s <= item.held; ++s) {
      const Slot a = keys[static_cast<size_t>(s)];
      if (*a.position > item.position - item.recent) continue;
      if (victim < 0) {
        victim = s;
        continue;
      }
      const Slot b = keys[static_cast<size_t>(victim)];
      const bool later = *a.position > *b.position;
      const bool worse =
          drop_latest ? later
                      : *a.score < *b.score || (*a.score == *b.score && later);
      if (worse) victim = s;
    }
    KF_CHECK(victim >= 0);
    if (trap_ == Trap::kRecentZeroOff && item.recent == 0) {
      AddGhost(shape, item.cache, g, item.cache, victim);
    }
    item.free_slot[g] = victim;
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
