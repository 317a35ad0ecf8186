// Turns one row of logits into a token. Counter-based randomness: the token
// depends on the logits, the options, the history and the step, on nothing
// else.
//
// Order (docs/sampling.md): logit bias, repetition, presence and frequency
// penalties, EOS masking below min_new_tokens, then temperature, top-k,
// typical-p, top-p, min-p, draw. Temperature 0 takes the largest (ties: the
// smaller id) after the same bias, penalties and masking.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <unordered_map>
#include <vector>

#include "engine/request.h"
#include "engine/sampling/logit_row.h"

namespace kf::engine {

// A logit bias of this, the lowest that a request may have, rules a token out.
inline constexpr double kBanningBias = -1e9;

// What the penalties count, per sequence: prompt and generated tokens. Tokens
// whose cache entry was evicted still count. Copies have their counts in common
// until one of them adds a token: samples that wait count their prompt once.
class TokenHistory {
 public:
  void AddPrompt(std::span<const TokenId> ids);
  void AddGenerated(TokenId id);
  // Appearances; repetition counts prompt and generated, presence and frequency
  // generated tokens only.
  struct Counts {
    uint32_t prompt = 0;
    uint32_t generated = 0;
  };
  using Map = std::unordered_map<TokenId, Counts>;
  const Map& counts() const { return *counts_; }

 private:
  Map& OwnCounts();

  std::shared_ptr<Map> counts_ = std::make_shared<Map>();
};

// Whether any penalty reads a history.
bool HasPenalties(const SamplingParams& params);

// Thread-compatible; scratch is reused between calls, so one per thread.
class Sampler {
 public:
  explicit Sampler(int32_t vocabulary);

  struct Input {
    std::span<const float> logits;           // [vocabulary], raw
    const SamplingParams* params = nullptr;  // as ValidateRequest allows
    const TokenHistory* history = nullptr;   // null: no penalties
    uint64_t seed = 0;
    uint32_t step = 0;    // tokens generated before this one
    uint32_t stream = 0;  // index of the sequence in its request
    // Ids that may not be chosen: end-of-generation ids while step <
    // min_new_tokens. Ignored where it leaves nothing to choose from.
    std::span<const TokenId> forbidden = {};
  };
  // `scan` is that of input.logits, and not bad.
  TokenId Sample(const Input& input, const LogitsScan& scan);

 private:
  struct Candidate {
    float logit;  // after bias and penalties
    TokenId id;
    double weight;    // probability, up to a factor common to all
    double surprise;  // |-ln p - entropy|, typical-p alone
  };

  std::span<const float> Adjusted(const Input& input, LogitsScan& scan);
  void Adjust(const Input& input, bool ban);
  void Weigh(std::span<const float> logits,
             const LogitsScan& scan,
             const SamplingParams& params);
  void ListCandidates(const SamplingParams& params);
  void KeepTypical(double mass);
  void KeepTopP(double mass);
  void KeepMinP(double share);
  template <typename Worse>
  void KeepUntil(double goal, const Worse& worse);
  TokenId IdOf(size_t place) const {
    return kept_.empty() ? static_cast<TokenId>(place) : kept_[place];
  }
  // ln of the weight of a logit of the row.
  double ExponentOf(float logit) const {
    return (static_cast<double>(logit) - static_cast<double>(largest_)) *
           scale_;
  }
  TokenId DrawFromRow(double u) const;
  TokenId DrawFromCandidates(double u) const;

  int32_t vocabulary_;
  std::vector<float> adjusted_;  // [vocabulary], where anything adjusts
  // The row to choose from: what top-k has left, ascending; empty: every id.
  std::vector<TokenId> kept_;
  std::vector<float> kept_logits_;  // of kept_
  std::span<const float> row_;
  float largest_ = 0.0F;               // of row_
  double scale_ = 1.0;                 // 1 / temperature
  std::vector<float> weights_;         // of row_
  std::vector<Candidate> candidates_;  // what the later filters have left
  double total_ = 0.0;                 // weight of what is left, listed or not
};

// True if a row holds a NaN or +inf, or nothing finite.
inline bool HasBadLogits(std::span<const float> logits) {
  return ScanLogits(logits).bad;
}

// logprob and rank of `id` in raw logits, with the `top` most probable tokens
// (ties: the smaller id). Exponentials in f32, their sum and its
// logarithm in double. `scan` is
// that of logits, and not bad.
TokenLogprob LogprobOf(std::span<const float> logits,
                       const LogitsScan& scan,
                       TokenId id,
                       uint32_t top);

}  // namespace kf::engine
