// From a row of logits to an update for the client: picks the token (on any
// thread), decodes its text, and knows when the sequence has ended.
//
// Rules (docs/life_of_a_request.md, Endings): the token that ends a sequence
// (end of generation, or a stop id) is reported and counted, but gives no text;
// forced tokens end nothing; stop strings are looked for only in the text that
// follows the first min_new_tokens tokens.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "engine/clock.h"
#include "engine/request.h"
#include "engine/sampling/sampler.h"
#include "engine/sequence.h"
#include "engine/sequence_group.h"
#include "engine/tokenizer/tokenizer.h"

namespace kf::engine {

class TokenEmitter {
 public:
  // What a row of logits comes to.
  struct Choice {
    bool bad = false;  // a NaN, +inf, or nothing finite: there is no more
    TokenId id = 0;
    std::optional<TokenLogprob> logprob = {};  // where the request has it
  };

  // Rows may be read by `workers` threads at once.
  TokenEmitter(const Tokenizer& tokenizer, int32_t vocabulary, int workers);

  // Called once, before the first row.
  void Begin(SequenceGroup& group) const;
  // The logprob of prompt token `row` + 1 under the logits of row `row`, and
  // the next token. All that costs time in a row: reads the sequence, changes
  // nothing, and runs at once for many rows, each `worker` once.
  Choice ReadPromptRow(const SequenceGroup& group,
                       int32_t row,
                       std::span<const float> logits) const;
  Choice ChooseNext(const Sequence& sequence,
                    std::span<const float> logits,
                    int worker);
  // The next token, where the request has it; else what the sampler is told,
  // but for the logits.
  static std::optional<TokenId> ForcedToken(const Sequence& sequence);
  static Sampler::Input SamplerInput(const Sequence& sequence);
  // Takes the chosen token. finish_reason is set if it is the last; kError if
  // the row was bad.
  Update Next(Sequence& sequence, Choice choice, TimePoint now);
  // An end without a token: time limit, error, or T = 0.
  Update Finish(Sequence& sequence, FinishReason reason, TimePoint now) const;
  // All of a beam, in the sequence of its rank; `reason` where it has not ended
  // by its last token.
  Update FinishBeam(Sequence& sequence,
                    const BeamSearch::Result& beam,
                    FinishReason reason,
                    TimePoint now) const;

 private:
  void AddText(Sequence& sequence, TokenId id, Update& update) const;
  bool EndsHere(Sequence& sequence, TokenId id, Update& update) const;
  void Complete(Sequence& sequence,
                FinishReason reason,
                TimePoint now,
                Update& update) const;
  void AddFirst(Sequence& sequence, TimePoint now, Update& update) const;

  const Tokenizer& tokenizer_;
  std::vector<Sampler> samplers_;  // of each worker
  std::vector<TokenId> end_ids_;   // all end-of-generation ids
};

}  // namespace kf::engine
