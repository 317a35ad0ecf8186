#include "engine/token_emitter.h"

#include <algorithm>
#include <memory>
#include <string>
#include <utility>

namespace kf::engine {
namespace {

bool IsForced(const Sequence& s) {
  return !s.group.request.forced_tokens.empty();
}

bool Contains(const std::vector<TokenId>& ids, TokenId id) {
  return std::find(ids.begin(), ids.end(), id) != ids.end();
}

}  // namespace

TokenEmitter::TokenEmitter(const Tokenizer& tokenizer,
                           int32_t vocabulary,
                           int workers)
    : tokenizer_(tokenizer) {
  // One by one: a copy would not have the memory that each has reserved.
  samplers_.reserve(static_cast<size_t>(workers));
  for (int i = 0; i < workers; ++i) samplers_.emplace_back(vocabulary);
  for (TokenId id = 0; id < vocabulary; ++id) {
    if (tokenizer.IsEndOfGeneration(id)) end_ids_.push_back(id);
  }
}

void TokenEmitter::Begin(SequenceGroup& group) const {
  const StoppingParams& stopping = group.request.stopping;
  if (group.request.beam) {
    group.beams = std::make_unique<BeamSearch>(
        *group.request.beam, group.sizes.max_new_tokens,
        stopping.ignore_eos ? std::vector<TokenId>() : end_ids_);
  }
  if (stopping.min_new_tokens == 0) return;
  // With ignore_eos the end-of-generation ids are tokens like any other.
  if (!stopping.ignore_eos) group.forbidden = end_ids_;
  group.forbidden.insert(group.forbidden.end(), stopping.stop_token_ids.begin(),
                         stopping.stop_token_ids.end());
}

TokenEmitter::Choice TokenEmitter::ReadPromptRow(
    const SequenceGroup& group,
    int32_t row,
    std::span<const float> logits) const {
  const LogitsScan scan = ScanLogits(logits);
  if (scan.bad) return {.bad = true};
  const Request& request = group.request;
  const TokenId id = request.prompt[static_cast<size_t>(row) + 1];
  return {.id = id,
          .logprob = LogprobOf(logits, scan, id, request.output.top_logprobs)};
}

TokenEmitter::Choice TokenEmitter::ChooseNext(const Sequence& s,
                                              std::span<const float> logits,
                                              int worker) {
  const LogitsScan scan = ScanLogits(logits);
  if (scan.bad) return {.bad = true};
  Choice choice;
  if (const std::optional<TokenId> forced = ForcedToken(s)) {
    choice.id = *forced;
  } else {
    Sampler::Input input = SamplerInput(s);
    input.logits = logits;
    choice.id = samplers_[static_cast<size_t>(worker)].Sample(input, scan);
  }
  if (s.group.request.output.logprobs || IsForced(s)) {
    choice.logprob =
        LogprobOf(logits, scan, choice.id, s.group.request.output.top_logprobs);
  }
  return choice;
}

std::optional<TokenId> TokenEmitter::ForcedToken(const Sequence& s) {
  if (!IsForced(s)) return std::nullopt;
  return s.group.request.forced_tokens[s.generated];
}

Sampler::Input TokenEmitter::SamplerInput(const Sequence& s) {
  Sampler::Input input{.logits = {},
                       .params = &s.group.request.sampling,
                       .history = s.history ? &*s.history : nullptr,
                       .seed = s.group.seed,
                       .step = s.generated,
                       .stream = s.stream,
                       .forbidden = {}};
  if (s.generated < s.group.request.stopping.min_new_tokens) {
    input.forbidden = s.group.forbidden;
  }
  return input;
}

Update TokenEmitter::Next(Sequence& s, Choice choice, TimePoint now) {
  if (choice.bad) return Finish(s, FinishReason::kError, now);
  Update update;
  update.index = s.index;
  const TokenId id = choice.id;
  if (choice.logprob) update.logprobs.push_back(std::move(*choice.logprob));
  update.token_ids.push_back(id);
  if (s.history) s.history->AddGenerated(id);
  s.next_input = id;
  s.last_token = now;
  const bool ended = EndsHere(s, id, update);
  ++s.generated;
  AddFirst(s, now, update);
  if (ended) {
    Complete(s, update.finish_reason, now, update);
  } else if (s.generated >=
             static_cast<uint32_t>(s.group.sizes.max_new_tokens)) {
    Complete(s,
             s.group.sizes.cut_by_context ? FinishReason::kContext
                                          : FinishReason::kLength,
             now, update);
  }
  return update;
}

// Adds the token's text, and sets the finish reason if the token, or a stop
// string that its text completes, ends the sequence.
bool TokenEmitter::EndsHere(Sequence& s, TokenId id, Update& update) const {
  const StoppingParams& stopping = s.group.request.stopping;
  if (!IsForced(s)) {
    if (!stopping.ignore_eos && tokenizer_.IsEndOfGeneration(id)) {
      update.finish_reason = FinishReason::kEos;
      if (s.group.request.output.keep_special_tokens &&
          tokenizer_.type(id) == TokenType::kControl) {
        AddText(s, id, update);
      }
      return true;
    }
    if (Contains(stopping.stop_token_ids, id)) {
      update.finish_reason = FinishReason::kStop;
      if (stopping.include_stop) AddText(s, id, update);
      return true;
    }
  }
  AddText(s, id, update);
  return update.finish_reason != FinishReason::kNotFinished;
}

void TokenEmitter::AddText(Sequence& s, TokenId id, Update& update) const {
  std::string text = s.decoder.Push(id);
  if (IsForced(s) || s.generated < s.group.request.stopping.min_new_tokens) {
    update.text += text;
    return;
  }
  StopMatcher::Result result = s.matcher.Push(text);
  update.text += result.text;
  if (!result.stopped) return;
  s.text_ended = true;
  // A stop id that ends the sequence keeps its own reason.
  if (update.finish_reason != FinishReason::kNotFinished) return;
  update.finish_reason = FinishReason::kStop;
  update.stop_string = std::move(result.matched);
}

Update TokenEmitter::Finish(Sequence& s,
                            FinishReason reason,
                            TimePoint now) const {
  Update update;
  update.index = s.index;
  AddFirst(s, now, update);
  Complete(s, reason, now, update);
  return update;
}

Update TokenEmitter::FinishBeam(Sequence& s,
                                const BeamSearch::Result& beam,
                                FinishReason reason,
                                TimePoint now) const {
  Update update;
  update.index = s.index;
  update.score = beam.score;
  update.token_ids.assign(beam.tokens.begin(), beam.tokens.end());
  for (const TokenId id : beam.tokens) EndsHere(s, id, update);
  AddFirst(s, now, update);
  Complete(s, beam.ended ? update.finish_reason : reason, now, update);
  return update;
}

// A group's first update carries the prompt's part, and that of each sequence
// the prompt's text where it is wanted.
void TokenEmitter::AddFirst(Sequence& s, TimePoint now, Update& update) const {
  SequenceGroup& group = s.group;
  if (!group.first_sent) {
    group.first_sent = true;
    update.first = true;
    update.usage = group.usage(now);
    update.seed = group.seed;
    update.noise_seed = group.noise_seed;
    update.prompt_logprobs = std::move(group.prompt_logprobs);
  }
  if (s.first_sent) return;
  s.first_sent = true;
  const Request& request = group.request;
  if (!request.output.echo_prompt) return;
  const std::string prompt =
      request.prompt_text.empty()
          ? tokenizer_.Decode(request.prompt,
                              request.output.keep_special_tokens)
          : request.prompt_text;
  update.text.insert(0, prompt);
}

void TokenEmitter::Complete(Sequence& s,
                            FinishReason reason,
                            TimePoint now,
                            Update& update) const {
  update.finish_reason = reason;
  update.usage = s.group.usage(now);
  // After a stop string the rest of the text is cut away.
  if (s.text_ended) return;
  const std::string tail = s.decoder.Finish();
  if (IsForced(s)) {
    update.text += tail;
    return;
  }
  const StopMatcher::Result rest = s.matcher.Push(tail);
  update.text += rest.text;
  if (!rest.stopped) update.text += s.matcher.Finish();
}

}  // namespace kf::engine
