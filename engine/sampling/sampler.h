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
#include <span>
#include <unordered_map>
#include <vector>

#include "engine/request.h"

namespace kf::engine {

// What the penalties count, per sequence: prompt and generated tokens. Tokens
// whose cache entry was evicted still count.
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
  const std::unordered_map<TokenId, Counts>& counts() const { return counts_; }

 private:
  std::unordered_map<TokenId, Counts> counts_;
};

// Thread-compatible; scratch is reused between calls, so one per engine thread.
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
  // Requires logits without HasBadLogits.
  TokenId Sample(const Input& input);

 private:
  struct Candidate {
    float logit;  // after bias and penalties
    TokenId id;
    double weight;    // probability, up to a factor common to all
    double surprise;  // |-ln p - entropy|, typical-p alone
  };

  void Adjust(const Input& input);
  void ListCandidates(double temperature);
  void KeepTopK(uint32_t top_k);
  void KeepTypical(double mass);
  void KeepTopP(double mass);
  void KeepMinP(double share);
  double TotalWeight() const;

  int32_t vocabulary_;
  std::vector<float> logits_;          // [vocabulary], adjusted
  std::vector<Candidate> candidates_;  // what the filters have left
};

// True if a row holds a NaN or +inf, or nothing finite.
bool HasBadLogits(std::span<const float> logits);

// logprob and rank of `id` in raw logits, with the `top` most probable tokens
// (ties: the smaller id). log-sum-exp in double, in index order. Requires
// logits without HasBadLogits.
TokenLogprob LogprobOf(std::span<const float> logits, TokenId id, uint32_t top);

}  // namespace kf::engine
