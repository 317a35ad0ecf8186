// Beam search as plain code over rows of logits: it knows no model, no cache
// and no text. The definition is beam_search of
// tests/oracle/keyformer_oracle.py.
//
// A step ranks all continuations (beam, token) by summed logprob, ties to the
// earlier beam, then to the smaller token. Those that end the text are finished
// if they rank among the first `width`; the best `width` others live on. The
// search is over after max_new_tokens, or when `width` beams are finished and
// either early_stopping is set or the best live one, at its present length, is
// no better than the worst of them. (It also ends, as at max_new_tokens, where
// the vocabulary is too small for `width` beams to go on.)
//
// Thread-compatible; Rank may run on many threads between two steps.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "engine/request.h"
#include "engine/sampling/logit_row.h"

namespace kf::engine {

class BeamSearch {
 public:
  struct Continuation {
    double logprob = 0.0;  // of the whole beam, summed
    TokenId token = 0;
  };
  struct Result {
    double score = 0.0;  // logprob / length ^ length_penalty
    std::vector<TokenId> tokens;
    bool ended = false;  // by its last token
  };

  // `end_ids` end a beam. max_new_tokens >= 0.
  BeamSearch(const BeamParams& params,
             int32_t max_new_tokens,
             std::vector<TokenId> end_ids);

  // Beams that wait for a row of logits: one, without a token, before the first
  // step; then `width`. 0: the search is over.
  size_t live() const { return over_ ? 0 : live_.size(); }
  // Tokens of each.
  uint32_t length() const { return length_; }

  // As many continuations of live beam `beam` as a step may need, best first.
  // `scan` is that of `logits`, and not bad.
  std::vector<Continuation> Rank(size_t beam,
                                 std::span<const float> logits,
                                 const LogitsScan& scan) const;
  // A step: row i is what Rank gave for live beam i.
  void Advance(std::span<const std::vector<Continuation>> rows);

  // Of live beam i after a step: which of the beams before it goes on in it,
  // and with which token.
  size_t parent(size_t beam) const { return live_[beam].parent; }
  TokenId token(size_t beam) const { return live_[beam].tokens.back(); }

  // The best `width` of the finished and the live beams, best first; at any
  // time.
  std::vector<Result> Best() const;

 private:
  struct Beam {
    double logprob = 0.0;
    size_t parent = 0;
    std::vector<TokenId> tokens;
  };
  double Score(double logprob, size_t length) const;
  bool Ends(TokenId token) const;
  void KeepBest(std::vector<Result>& results) const;

  const BeamParams params_;
  const size_t width_;
  const uint32_t max_new_tokens_;
  const std::vector<TokenId> end_ids_;
  std::vector<Beam> live_;        // best first
  std::vector<Result> finished_;  // at most `width`, best first
  uint32_t length_ = 0;
  bool over_ = false;
};

}  // namespace kf::engine
