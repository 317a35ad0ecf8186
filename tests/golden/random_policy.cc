#include "tests/golden/random_policy.h"

#include <numeric>

namespace kf::testing {
namespace {

using engine::CacheOptions;
using engine::CachePolicy;
using engine::SelectionScope;

void DrawBudget(std::mt19937& random, CacheOptions& c) {
  c.min_tokens = static_cast<uint32_t>(Draw(random, 1, 8));
  c.ratio = 0.1 * Draw(random, 1, 10);
  if (Draw(random, 0, 3) == 0) c.basis = engine::BudgetBasis::kTotal;
  if (Draw(random, 0, 2) == 0) {
    c.tokens = static_cast<uint32_t>(Draw(random, 1, 90));
  }
}

void DrawRecent(std::mt19937& random, CacheOptions& c) {
  c.recent_ratio = 0.25 * Draw(random, 0, 4);
  if (c.tokens.has_value() && Draw(random, 0, 2) == 0) {
    c.recent_tokens =
        static_cast<uint32_t>(Draw(random, 0, static_cast<int32_t>(*c.tokens)));
  }
}

void DrawScoring(std::mt19937& random, CacheOptions& c) {
  constexpr SelectionScope kScopes[] = {
      SelectionScope::kHead, SelectionScope::kLayer, SelectionScope::kModel};
  c.scope = kScopes[Draw(random, 0, 2)];
  c.decode_scores = Draw(random, 0, 5) != 0;
  if (Draw(random, 0, 3) == 0) {
    c.score_queries = static_cast<uint32_t>(Draw(random, 1, 60));
  }
  if (Draw(random, 0, 2) == 0) c.score_norm = engine::ScoreNorm::kAge;
}

void DrawNoise(std::mt19937& random, CacheOptions& c) {
  constexpr NoiseKind kNoises[] = {NoiseKind::kGumbel, NoiseKind::kGumbel,
                                   NoiseKind::kGaussian, NoiseKind::kConstant,
                                   NoiseKind::kNone};
  c.noise = kNoises[Draw(random, 0, 4)];
  if (Draw(random, 0, 1) == 1) c.noise_seed = random();
  c.resample_once = Draw(random, 0, 3) == 0;
  c.tau_init = 0.5 * Draw(random, 1, 4);
  c.tau_end = 0.5 * Draw(random, 1, 6);
}

}  // namespace

int32_t Draw(std::mt19937& random, int32_t low, int32_t high) {
  return low +
         static_cast<int32_t>(random() % static_cast<uint32_t>(high - low + 1));
}

CacheOptions DrawCacheOptions(std::mt19937& random,
                              CachePolicy policy,
                              int32_t layers) {
  CacheOptions c;
  c.policy = policy;
  c.min_tokens = 1;
  if (policy == CachePolicy::kFull) return c;
  DrawBudget(random, c);
  if (policy == CachePolicy::kQuest) {
    c.full_layers = static_cast<uint32_t>(Draw(random, 0, layers));
    return c;
  }
  if (policy == CachePolicy::kWindow) {
    c.sinks = static_cast<uint32_t>(Draw(random, 0, 20));
  } else {
    DrawRecent(random, c);
    DrawScoring(random, c);
  }
  if (policy == CachePolicy::kKeyformer) DrawNoise(random, c);
  if (Draw(random, 0, 4) == 0) c.positions = engine::CachePositions::kCache;
  if (c.scope != SelectionScope::kModel && Draw(random, 0, 3) == 0) {
    c.layer_weights.push_back(1.0);
    for (int32_t layer = 1; layer < layers; ++layer) {
      c.layer_weights.push_back(0.5 * Draw(random, 0, 6));
    }
    const double sum =
        std::accumulate(c.layer_weights.begin(), c.layer_weights.end(), 0.0);
    for (double& weight : c.layer_weights) weight *= layers / sum;
  }
  return c;
}

}  // namespace kf::testing
