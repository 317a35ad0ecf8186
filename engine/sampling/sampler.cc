#include "engine/sampling/sampler.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/core/noise.h"
#include "kernels/core/status.h"

namespace kf::engine {
namespace {

constexpr float kMinusInfinity = -std::numeric_limits<float>::infinity();

// Keeps draws apart from cache noise of the same seed, whose fourth counter
// word is 0 (docs/keyformer.md, Noise).
constexpr uint32_t kDrawTag = 0x5A3D1E01U;

// [0, 1), 53 bits.
double DrawUniform(uint64_t seed, uint32_t step, uint32_t stream) {
  const Philox4 r =
      Philox4x32(step, stream, 0, kDrawTag, static_cast<uint32_t>(seed),
                 static_cast<uint32_t>(seed >> 32));
  const uint64_t bits = (uint64_t{r.word[0]} << 32) | r.word[1];
  return static_cast<double>(bits >> 11) * 0x1p-53;
}

// Adjustments are finite, but their result may pass what a float holds.
float ToFiniteFloat(double x) {
  constexpr auto kLimit =
      static_cast<double>(std::numeric_limits<float>::max());
  return static_cast<float>(std::clamp(x, -kLimit, kLimit));
}

}  // namespace

void TokenHistory::AddPrompt(std::span<const TokenId> ids) {
  for (const TokenId id : ids) ++counts_[id].prompt;
}

void TokenHistory::AddGenerated(TokenId id) { ++counts_[id].generated; }

Sampler::Sampler(int32_t vocabulary) : vocabulary_(vocabulary) {
  KF_CHECK(vocabulary >= 1);
  logits_.reserve(static_cast<size_t>(vocabulary));
}

void Sampler::Adjust(const Input& input) {
  const SamplingParams& p = *input.params;
  logits_.assign(input.logits.begin(), input.logits.end());
  // -inf stays: the model rules the token out, whatever the bias.
  const auto update = [this](TokenId id, auto f) {
    float& logit = logits_[static_cast<size_t>(id)];
    if (logit != kMinusInfinity)
      logit = ToFiniteFloat(f(static_cast<double>(logit)));
  };
  for (const auto& [id, bias] : p.logit_bias) {
    update(id, [b = bias](double x) { return x + b; });
  }
  if (input.history == nullptr) return;
  const double repetition =
      p.repetition_penalty == 0.0 ? 1.0 : p.repetition_penalty;
  if (repetition == 1.0 && p.presence_penalty == 0.0 &&
      p.frequency_penalty == 0.0) {
    return;
  }
  for (const auto& [id, count] : input.history->counts()) {
    update(id, [&, seen = count](double x) {
      x = x > 0.0 ? x / repetition : x * repetition;
      if (seen.generated == 0) return x;
      return x - p.presence_penalty - p.frequency_penalty * seen.generated;
    });
  }
}

// Weights relative to the largest, so that no temperature overflows: the
// largest has weight 1, and the others vanish as the temperature does.
void Sampler::ListCandidates(double temperature) {
  const auto top =
      static_cast<double>(*std::max_element(logits_.begin(), logits_.end()));
  candidates_.clear();
  for (TokenId id = 0; id < vocabulary_; ++id) {
    const float logit = logits_[static_cast<size_t>(id)];
    if (logit == kMinusInfinity) continue;
    const double weight =
        std::exp((static_cast<double>(logit) - top) / temperature);
    candidates_.push_back({logit, id, weight, 0.0});
  }
}

double Sampler::TotalWeight() const {
  double total = 0.0;
  for (const Candidate& c : candidates_) total += c.weight;
  return total;
}

void Sampler::KeepTopK(uint32_t top_k) {
  if (top_k == 0 || top_k >= candidates_.size()) return;
  const auto better = [](const Candidate& a, const Candidate& b) {
    return a.logit != b.logit ? a.logit > b.logit : a.id < b.id;
  };
  const auto end = candidates_.begin() + static_cast<std::ptrdiff_t>(top_k);
  std::nth_element(candidates_.begin(), end, candidates_.end(), better);
  candidates_.erase(end, candidates_.end());
  // The order of what is left must not hang on the library's nth_element.
  std::sort(candidates_.begin(), candidates_.end(),
            [](const Candidate& a, const Candidate& b) { return a.id < b.id; });
}

// Locally typical sampling (Meister et al., 2023): the tokens whose surprise is
// nearest to the entropy, until they hold `mass`.
void Sampler::KeepTypical(double mass) {
  if (mass == 0.0 || mass >= 1.0) return;
  const double total = TotalWeight();
  double entropy = 0.0;
  for (const Candidate& c : candidates_) {
    const double p = c.weight / total;
    if (p > 0.0) entropy -= p * std::log(p);
  }
  for (Candidate& c : candidates_) {
    c.surprise = std::abs(-std::log(c.weight / total) - entropy);
  }
  std::sort(candidates_.begin(), candidates_.end(),
            [](const Candidate& a, const Candidate& b) {
              return a.surprise != b.surprise ? a.surprise < b.surprise
                                              : a.id < b.id;
            });
  double sum = 0.0;
  size_t kept = 0;
  do {
    sum += candidates_[kept++].weight;
  } while (kept < candidates_.size() && sum < mass * total);
  candidates_.resize(kept);
}

// The most probable tokens until they hold `mass`. A heap: only what is kept
// gets sorted.
void Sampler::KeepTopP(double mass) {
  if (mass == 0.0 || mass >= 1.0) return;
  const double goal = mass * TotalWeight();
  const auto worse = [](const Candidate& a, const Candidate& b) {
    return a.logit != b.logit ? a.logit < b.logit : a.id > b.id;
  };
  std::make_heap(candidates_.begin(), candidates_.end(), worse);
  auto rest = candidates_.end();
  double sum = 0.0;
  do {
    std::pop_heap(candidates_.begin(), rest, worse);
    sum += (--rest)->weight;
  } while (rest != candidates_.begin() && sum < goal);
  candidates_.erase(candidates_.begin(), rest);
}

void Sampler::KeepMinP(double share) {
  if (share == 0.0) return;
  double largest = 0.0;
  for (const Candidate& c : candidates_) largest = std::max(largest, c.weight);
  std::erase_if(candidates_, [floor = share * largest](const Candidate& c) {
    return c.weight < floor;
  });
}

TokenId Sampler::Sample(const Input& input) {
  KF_CHECK(input.logits.size() == static_cast<size_t>(vocabulary_));
  Adjust(input);
  for (const TokenId id : input.forbidden) {
    logits_[static_cast<size_t>(id)] = kMinusInfinity;
  }
  auto best = std::max_element(logits_.begin(), logits_.end());
  if (*best == kMinusInfinity) {
    Adjust(input);
    best = std::max_element(logits_.begin(), logits_.end());
  }
  const SamplingParams& p = *input.params;
  if (p.temperature == 0.0) return static_cast<TokenId>(best - logits_.begin());

  ListCandidates(p.temperature);
  KeepTopK(p.top_k);
  KeepTypical(p.typical_p);
  KeepTopP(p.top_p);
  KeepMinP(p.min_p);

  const double point =
      DrawUniform(input.seed, input.step, input.stream) * TotalWeight();
  double sum = 0.0;
  const Candidate* last = nullptr;
  for (const Candidate& c : candidates_) {
    if (c.weight == 0.0) continue;
    last = &c;
    sum += c.weight;
    if (point < sum) break;
  }
  // Rounding may leave the point a hair beyond the sum: the last one then. A
  // filter keeps at least one token of weight > 0.
  KF_CHECK(last != nullptr);
  return last->id;
}

}  // namespace kf::engine
