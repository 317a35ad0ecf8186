#include "kernels/ref/ref_attention.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include "kernels/core/status.h"
#include "kernels/ref/ref_page.h"

namespace kf::ref {
namespace {

// Rotates the adjacent pairs of the leading channels of `heads` consecutive
// heads, in f32 with angles in double: the same arithmetic as the fast back
// ends, so that rounding K to bf16 gives the same bits.
void Rotate(const AttentionShape& shape,
            int32_t position,
            int32_t heads,
            float* x) {
  for (int32_t i = 0; i < shape.rotary_dim; i += 2) {
    const double angle =
        position *
        std::pow(shape.rope_base, -static_cast<double>(i) / shape.rotary_dim);
    const auto c = static_cast<float>(std::cos(angle));
    const auto s = static_cast<float>(std::sin(angle));
    for (int32_t h = 0; h < heads; ++h) {
      float* pair = x + int64_t{h} * shape.head_dim + i;
      const float a = pair[0];
      const float b = pair[1];
      pair[0] = a * c - b * s;
      pair[1] = a * s + b * c;
    }
  }
}

// Rotates a fused row [Q | K | V]: the queries by `rank`, the keys by
// `position`, or not at all where they are rotated by their rank when read.
void RotateRow(const AttentionShape& shape,
               int32_t rank,
               int32_t position,
               bool rank_positions,
               float* row) {
  Rotate(shape, rank, shape.query_heads, row);
  if (rank_positions) return;
  Rotate(shape, position, shape.kv_heads,
         row + int64_t{shape.query_heads} * shape.head_dim);
}

// A stored key, rotated by its rank and rounded again.
std::vector<float> RotatedKey(const AttentionShape& shape,
                              const float* k,
                              int32_t rank) {
  std::vector<float> rotated(k, k + shape.head_dim);
  Rotate(shape, rank, 1, rotated.data());
  StoreVector(rotated, shape.cache_dtype, rotated.data());
  return rotated;
}

// Puts rotated copies, which the result owns, in place of the keys' K: a key's
// rank is its place in order of position.
std::vector<std::vector<float>> RotateByRank(const AttentionShape& shape,
                                             std::vector<Slot>& keys) {
  std::vector<size_t> order(keys.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::sort(order.begin(), order.end(), [&keys](size_t a, size_t b) {
    return *keys[a].position < *keys[b].position;
  });
  std::vector<std::vector<float>> rotated;
  for (size_t rank = 0; rank < order.size(); ++rank) {
    Slot& key = keys[order[rank]];
    rotated.push_back(RotatedKey(shape, key.k, static_cast<int32_t>(rank)));
    key.k = rotated.back().data();
  }
  return rotated;
}

// Writes one head's K and V of a row; the score starts at 0.
void Append(const AttentionShape& shape,
            const float* row,
            int32_t head,
            int32_t position,
            const Slot& to) {
  const float* k = row + int64_t{shape.query_heads + head} * shape.head_dim;
  const float* v = k + int64_t{shape.kv_heads} * shape.head_dim;
  const auto d = static_cast<size_t>(shape.head_dim);
  StoreVector({k, d}, shape.cache_dtype, to.k);
  StoreVector({v, d}, shape.cache_dtype, to.v);
  *to.position = position;
  *to.score = 0.0F;
}

// Logits of a rotated query, [d].
std::vector<double> Logits(const AttentionShape& shape,
                           const float* q,
                           const std::vector<Slot>& keys) {
  const std::vector<float> query =
      RoundedQuery({q, static_cast<size_t>(shape.head_dim)}, shape.cache_dtype);
  std::vector<double> logits;
  for (const Slot& key : keys) {
    double sum = 0.0;
    for (size_t c = 0; c < query.size(); ++c) {
      sum += static_cast<double>(query[c]) * static_cast<double>(key.k[c]);
    }
    logits.push_back(sum / std::sqrt(static_cast<double>(shape.head_dim)));
  }
  return logits;
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

void Attention::Prompt(const PromptAttentionArgs& args) {
  for (const PromptAttentionItem& item : args.items) PromptItem(args, item);
}

void Attention::PromptItem(const PromptAttentionArgs& args,
                           const PromptAttentionItem& item) {
  const AttentionShape& shape = args.shape;
  const int32_t group = shape.query_heads / shape.kv_heads;
  KF_CHECK(item.first_row % kPromptRowTile == 0);
  KF_CHECK(shape.cache_dtype != DType::kI8);
  const int32_t end = item.first_row + item.rows;
  const auto batch_row = [&item](int32_t p) {
    return item.batch_row + p - item.first_row;
  };
  const auto row_of = [&](int32_t p) {
    return args.qkv + batch_row(p) * shape.qkv_dim();
  };
  for (int32_t p = item.first_row; p < end; ++p) {
    RotateRow(shape, p, p, item.rank_positions, row_of(p));
    for (int32_t g = 0; g < shape.kv_heads; ++g) {
      Append(shape, row_of(p), g, p, SlotAt(shape, item.keys, g, p));
    }
  }
  for (int32_t g = 0; g < shape.kv_heads; ++g) {
    std::vector<Slot> all;
    for (int32_t i = 0; i < end; ++i) {
      all.push_back(SlotAt(shape, item.keys, g, i));
    }
    std::vector<std::vector<float>> rotated;
    if (item.rank_positions) rotated = RotateByRank(shape, all);
    for (int32_t p = item.first_row; p < end; ++p) {
      const std::vector<Slot> keys(all.begin(), all.begin() + p + 1);
      for (int32_t h = g * group; h < (g + 1) * group; ++h) {
        const float* q = row_of(p) + int64_t{h} * shape.head_dim;
        const std::vector<double> logits = Logits(shape, q, keys);
        Attend(shape, logits, keys,
               args.out + batch_row(p) * shape.out_dim() +
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

void Attention::Decode(const DecodeAttentionArgs& args) {
  for (size_t row = 0; row < args.items.size(); ++row) DecodeItem(args, row);
}

void Attention::DecodeItem(const DecodeAttentionArgs& args, size_t row) {
  const AttentionShape& shape = args.shape;
  const DecodeAttentionItem& item = args.items[row];
  const bool scored = item.score.enabled && item.add_scores;
  const bool quest = !item.bounds.pages.empty();
  KF_CHECK(item.row_scores == nullptr || item.defer_eviction);
  KF_CHECK(!quest || (!scored && item.held == item.position &&
                      item.held < item.budget && !item.rank_positions));
  const int32_t group = shape.query_heads / shape.kv_heads;
  float* qkv = args.qkv + static_cast<int64_t>(row) * shape.qkv_dim();
  float* out = args.out + static_cast<int64_t>(row) * shape.out_dim();
  RotateRow(shape, item.rank_positions ? item.held : item.position,
            item.position, item.rank_positions, qkv);
  for (int32_t g = 0; g < shape.kv_heads; ++g) {
    Append(shape, qkv, g, item.position,
           SlotAt(shape, item.cache, g, item.free_slot[g]));
    const std::vector<Slot> slots =
        HeldSlots(shape, item.cache, item.held + 1, g);
    std::vector<Slot> keys = slots;
    std::vector<std::vector<float>> rotated;
    if (item.rank_positions) rotated = RotateByRank(shape, keys);
    if (quest) {
      BoundPage(shape, item.held + 1, item.cache, item.bounds, g,
                item.held / kPageTokens);
      keys = ChooseKeys(shape, item, g,
                        qkv + int64_t{g} * group * shape.head_dim, keys);
    }
    float* row_scores = item.row_scores == nullptr
                            ? nullptr
                            : item.row_scores + int64_t{g} * (item.held + 1);
    if (row_scores != nullptr) std::fill_n(row_scores, item.held + 1, 0.0F);
    for (int32_t h = g * group; h < (g + 1) * group; ++h) {
      const std::vector<double> logits =
          Logits(shape, qkv + int64_t{h} * shape.head_dim, keys);
      Attend(shape, logits, keys, out + int64_t{h} * shape.head_dim);
      if (!scored) continue;
      const std::vector<double> column =
          NoisySoftmax(logits, keys, item.score, item.position, args.layer, h);
      for (size_t i = 0; i < keys.size(); ++i) {
        AddScore(row_scores != nullptr ? row_scores[i] : *keys[i].score,
                 column[i]);
      }
    }
    if (item.defer_eviction) continue;
    if (item.held + 1 <= item.budget) {
      item.free_slot[g] = item.held + 1;
      continue;
    }
    std::vector<Candidate> candidates;
    for (int32_t s = 0; s <= item.held; ++s) {
      const Slot& slot = slots[static_cast<size_t>(s)];
      candidates.push_back(
          {*slot.position,
           Rank(static_cast<double>(*slot.score), item.age, *slot.position)});
    }
    const int32_t victim = FindVictim(candidates, item.position, item.recent);
    if (trap_ == Trap::kRecentZeroOff && item.recent == 0) {
      AddGhost(shape, item.cache, g, item.cache, victim);
    }
    item.free_slot[g] = victim;
  }
}

}  // namespace kf::ref
