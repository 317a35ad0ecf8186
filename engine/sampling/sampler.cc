#include "engine/sampling/sampler.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/core/noise.h"
#include "kernels/core/status.h"

namespace kf::engine {
namespace {

constexpr float kMinusInfinity = -std::numeric_limits<float>::infinity();

// Adjustments are finite, but their result may pass what a float holds.
float ToFiniteFloat(double x) {
  constexpr auto kLimit =
      static_cast<double>(std::numeric_limits<float>::max());
  return static_cast<float>(std::clamp(x, -kLimit, kLimit));
}

// Of typical_p and top_p.
bool IsOn(double mass) { return mass > 0.0 && mass < 1.0; }

constexpr size_t kDrawBlock = 512;

std::span<const float> BlockOf(const std::vector<float>& weights,
                               size_t begin) {
  return std::span(weights).subspan(
      begin, std::min(kDrawBlock, weights.size() - begin));
}

}  // namespace

void TokenHistory::AddPrompt(std::span<const TokenId> ids) {
  Map& counts = OwnCounts();
  for (const TokenId id : ids) ++counts[id].prompt;
}

void TokenHistory::AddGenerated(TokenId id) { ++OwnCounts()[id].generated; }

TokenHistory::Map& TokenHistory::OwnCounts() {
  if (counts_.use_count() > 1) counts_ = std::make_shared<Map>(*counts_);
  return *counts_;
}

bool HasPenalties(const SamplingParams& params) {
  const bool repetition =
      params.repetition_penalty != 0.0 && params.repetition_penalty != 1.0;
  return repetition || params.presence_penalty != 0.0 ||
         params.frequency_penalty != 0.0;
}

Sampler::Sampler(int32_t vocabulary) : vocabulary_(vocabulary) {
  KF_CHECK(vocabulary >= 1);
  // Now, since a decode step is not to allocate; untouched, it costs nothing.
  const auto most = static_cast<size_t>(vocabulary);
  adjusted_.reserve(most);
  kept_.reserve(most);
  kept_logits_.reserve(most);
  weights_.reserve(most);
  candidates_.reserve(most);
}

// Bias and penalties, into adjusted_.
void Sampler::Adjust(const Input& input, bool ban) {
  const SamplingParams& p = *input.params;
  adjusted_.assign(input.logits.begin(), input.logits.end());
  // -inf stays: the model rules the token out, whatever the bias.
  const auto update = [this](TokenId id, auto f) {
    float& logit = adjusted_[static_cast<size_t>(id)];
    if (logit != kMinusInfinity) {
      logit = ToFiniteFloat(f(static_cast<double>(logit)));
    }
  };
  for (const auto& [id, bias] : p.logit_bias) {
    if (bias > kBanningBias) {
      update(id, [b = bias](double x) { return x + b; });
    } else if (ban) {
      adjusted_[static_cast<size_t>(id)] = kMinusInfinity;
    }
  }
  if (input.history == nullptr || !HasPenalties(p)) return;
  const double repetition =
      p.repetition_penalty == 0.0 ? 1.0 : p.repetition_penalty;
  for (const auto& [id, count] : input.history->counts()) {
    update(id, [&, seen = count](double x) {
      x = x > 0.0 ? x / repetition : x * repetition;
      if (seen.generated == 0) return x;
      return x - p.presence_penalty - p.frequency_penalty * seen.generated;
    });
  }
}

// The row to choose from, and its scan. What rules tokens out gives way where
// it would leave nothing: first the mask, then the bans.
std::span<const float> Sampler::Adjusted(const Input& input, LogitsScan& scan) {
  const bool plain = input.params->logit_bias.empty() &&
                     (input.history == nullptr || !HasPenalties(*input.params));
  if (plain && input.forbidden.empty()) return input.logits;
  for (const bool mask : {true, false}) {
    Adjust(input, /*ban=*/true);
    if (mask) {
      for (const TokenId id : input.forbidden) {
        adjusted_[static_cast<size_t>(id)] = kMinusInfinity;
      }
    }
    scan = ScanLogits(adjusted_);
    if (!scan.bad) return adjusted_;
  }
  Adjust(input, /*ban=*/false);
  scan = ScanLogits(adjusted_);
  return adjusted_;
}

// top_k, before anything is exponentiated, then the weights: relative to the
// largest, so that no temperature overflows. The largest has weight 1, and the
// others vanish as the temperature does.
void Sampler::Weigh(std::span<const float> logits,
                    const LogitsScan& scan,
                    const SamplingParams& params) {
  row_ = logits;
  largest_ = scan.largest;
  kept_.clear();
  if (params.top_k > 0 && params.top_k < logits.size()) {
    kept_ = SelectLargest(logits, params.top_k, std::move(kept_));
    std::sort(kept_.begin(), kept_.end());
    kept_logits_.clear();
    for (const TokenId id : kept_) {
      kept_logits_.push_back(logits[static_cast<size_t>(id)]);
    }
    row_ = kept_logits_;
  }
  // Beyond that any difference of two logits is far below e^-86 already.
  scale_ = std::min(1.0 / params.temperature, 1e300);
  weights_.resize(row_.size());
  Exponentials(row_, largest_, scale_, weights_);
  total_ = 0.0;
  for (size_t begin = 0; begin < weights_.size(); begin += kDrawBlock) {
    total_ += Sum(BlockOf(weights_, begin));
  }
}

// What the filters can keep. The tokens below `floor` hold less than half of
// what lies beyond the mass that is asked for, so that the others hold it.
void Sampler::ListCandidates(const SamplingParams& params) {
  const bool typical = IsOn(params.typical_p);
  double floor = params.min_p;
  double mean = 0.0;  // of ln weight: total and entropy shift it alone
  if (typical) {
    for (size_t i = 0; i < weights_.size(); ++i) {
      if (weights_[i] == 0.0F) continue;
      mean += static_cast<double>(weights_[i]) * ExponentOf(row_[i]);
    }
    mean /= total_;
  }
  if (typical || IsOn(params.top_p)) {
    const double mass = typical ? params.typical_p : params.top_p;
    floor =
        (1.0 - mass) * total_ / (2.0 * static_cast<double>(weights_.size()));
    // Below this a token is further from the mean than the best one is, and
    // so than all above it.
    if (typical) floor = std::min(floor, std::exp(2.0 * mean));
  }
  // Rounded down, and above the weights that are 0.
  const float least = std::max(std::nextafter(static_cast<float>(floor), 0.0F),
                               std::numeric_limits<float>::min());
  candidates_.clear();
  for (size_t i = 0; i < weights_.size(); ++i) {
    if (weights_[i] < least) continue;
    candidates_.push_back({.logit = row_[i],
                           .id = IdOf(i),
                           .weight = static_cast<double>(weights_[i]),
                           .surprise = std::abs(ExponentOf(row_[i]) - mean)});
  }
}

// The best ones until they hold `goal`, least good first. A heap: only what is
// kept gets sorted.
template <typename Worse>
void Sampler::KeepUntil(double goal, const Worse& worse) {
  std::make_heap(candidates_.begin(), candidates_.end(), worse);
  auto rest = candidates_.end();
  double sum = 0.0;
  do {
    std::pop_heap(candidates_.begin(), rest, worse);
    sum += (--rest)->weight;
  } while (rest != candidates_.begin() && sum < goal);
  candidates_.erase(candidates_.begin(), rest);
}

// Locally typical sampling (Meister et al., 2023): the tokens whose surprise is
// nearest to the entropy, until they hold `mass`; the nearest first.
void Sampler::KeepTypical(double mass) {
  KeepUntil(mass * total_, [](const Candidate& a, const Candidate& b) {
    return a.surprise != b.surprise ? a.surprise > b.surprise : a.id > b.id;
  });
  std::reverse(candidates_.begin(), candidates_.end());
  total_ = 0.0;
  for (const Candidate& c : candidates_) total_ += c.weight;
}

// The most probable tokens until they hold `mass`; the least probable first.
void Sampler::KeepTopP(double mass) {
  KeepUntil(mass * total_, [](const Candidate& a, const Candidate& b) {
    return a.logit != b.logit ? a.logit < b.logit : a.id > b.id;
  });
}

void Sampler::KeepMinP(double share) {
  double largest = 0.0;
  for (const Candidate& c : candidates_) largest = std::max(largest, c.weight);
  std::erase_if(candidates_, [floor = share * largest](const Candidate& c) {
    return c.weight < floor;
  });
}

// Whole blocks are passed over by their sums, which make up total_.
TokenId Sampler::DrawFromRow(double u) const {
  const double point = u * total_;
  double sum = 0.0;
  size_t block = 0;
  double before = 0.0;
  for (size_t begin = 0; begin < weights_.size() && sum <= point;
       begin += kDrawBlock) {
    const double weight = Sum(BlockOf(weights_, begin));
    if (weight == 0.0) continue;
    block = begin;
    before = sum;
    sum += weight;
  }
  size_t last = block;
  sum = before;
  const size_t end = std::min(block + kDrawBlock, weights_.size());
  for (size_t i = block; i < end && sum <= point; ++i) {
    if (weights_[i] == 0.0F) continue;
    last = i;
    sum += static_cast<double>(weights_[i]);
  }
  return IdOf(last);
}

TokenId Sampler::DrawFromCandidates(double u) const {
  double total = 0.0;
  for (const Candidate& c : candidates_) total += c.weight;
  const double point = u * total;
  // Rounding may leave the point a hair beyond the sum: the last one then. A
  // filter keeps at least one token.
  TokenId last = candidates_.back().id;
  double sum = 0.0;
  for (const Candidate& c : candidates_) {
    sum += c.weight;
    if (point < sum) return c.id;
  }
  return last;
}

TokenId Sampler::Sample(const Input& input, const LogitsScan& scan) {
  KF_CHECK(input.logits.size() == static_cast<size_t>(vocabulary_));
  const SamplingParams& p = *input.params;
  LogitsScan adjusted = scan;
  const std::span<const float> logits = Adjusted(input, adjusted);
  if (p.temperature == 0.0) return adjusted.best;

  const double u = DrawUniform(input.seed, input.step, input.stream);
  Weigh(logits, adjusted, p);
  if (!IsOn(p.typical_p) && !IsOn(p.top_p) && p.min_p == 0.0) {
    return DrawFromRow(u);
  }
  ListCandidates(p);
  if (IsOn(p.typical_p)) KeepTypical(p.typical_p);
  if (IsOn(p.top_p)) KeepTopP(p.top_p);
  if (p.min_p > 0.0) KeepMinP(p.min_p);
  return DrawFromCandidates(u);
}

}  // namespace kf::engine
