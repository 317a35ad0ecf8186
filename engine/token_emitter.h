// From a row of logits to an update for the client: picks the token, decodes
// its text, and knows when the sequence has ended.
//
// Rules (docs/life_of_a_request.md, Endings): the token that ends a sequence
// (end of generation, or a stop id) is reported and counted, but gives no text;
// forced tokens end nothing; stop strings are looked for only in the text that
// follows the first min_new_tokens tokens.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "engine/clock.h"
#include "engine/request.h"
#include "engine/sampling/sampler.h"
#include "engine/sequence.h"
#include "engine/tokenizer/tokenizer.h"

namespace kf::engine {

class TokenEmitter {
 public:
  TokenEmitter(const Tokenizer& tokenizer, int32_t vocabulary);

  // Called once, before the first row.
  void Begin(Sequence& sequence) const;
  // Logprob of prompt token `row` + 1 under the logits of row `row`. False if
  // the row is bad: the sequence must end with Fail.
  bool AddPromptLogprob(Sequence& sequence,
                        int32_t row,
                        std::span<const float> logits) const;
  // The next token. finish_reason is set if it is the last; kError if the row
  // holds a NaN or no finite number.
  Update Next(Sequence& sequence, std::span<const float> logits, TimePoint now);
  // An end without a token: time limit, error, or T = 0.
  Update Finish(Sequence& sequence, FinishReason reason, TimePoint now) const;

 private:
  TokenId Choose(const Sequence& sequence, std::span<const float> logits);
  void AddText(Sequence& sequence, TokenId id, Update& update) const;
  bool EndsHere(Sequence& sequence, TokenId id, Update& update) const;
  void Complete(Sequence& sequence,
                FinishReason reason,
                TimePoint now,
                Update& update) const;
  void AddFirst(Sequence& sequence, TimePoint now, Update& update) const;

  const Tokenizer& tokenizer_;
  Sampler sampler_;
  std::vector<TokenId> end_ids_;  // all end-of-generation ids
};

}  // namespace kf::engine
