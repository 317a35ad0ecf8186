#include "server/convert_response.h"

#include <algorithm>
#include <iterator>
#include <span>
#include <utility>
#include <vector>

#include "server/convert_report.h"

namespace kf::server {
namespace {

namespace v1 = ::keyformer::v1;
using google::protobuf::RepeatedField;
using google::protobuf::RepeatedPtrField;

template <typename T>
void Append(T from, T* to) {
  if (to->empty()) {
    *to = std::move(from);
    return;
  }
  to->insert(to->end(), std::make_move_iterator(from.begin()),
             std::make_move_iterator(from.end()));
}

v1::FinishReason FromFinish(engine::FinishReason reason) {
  switch (reason) {
    case engine::FinishReason::kNotFinished:
      break;
    case engine::FinishReason::kEos:
      return v1::FINISH_REASON_EOS;
    case engine::FinishReason::kStop:
      return v1::FINISH_REASON_STOP;
    case engine::FinishReason::kLength:
      return v1::FINISH_REASON_LENGTH;
    case engine::FinishReason::kContext:
      return v1::FINISH_REASON_CONTEXT;
    case engine::FinishReason::kTimeLimit:
      return v1::FINISH_REASON_TIME_LIMIT;
    case engine::FinishReason::kCancelled:
      return v1::FINISH_REASON_CANCELLED;
    case engine::FinishReason::kError:
      return v1::FINISH_REASON_ERROR;
  }
  return v1::FINISH_REASON_NOT_FINISHED;
}

void SetLogprob(const engine::TokenLogprob& from,
                const engine::Tokenizer& tokenizer,
                v1::TokenLogprob* to) {
  to->set_token_id(static_cast<uint32_t>(from.id));
  to->set_logprob(from.logprob);
  to->set_rank(from.rank);
  to->set_text(std::string(tokenizer.TokenBytes(from.id)));
  for (const engine::TokenLogprob& top : from.top) {
    SetLogprob(top, tokenizer, to->add_top());
  }
}

void SetLogprobs(const std::vector<engine::TokenLogprob>& from,
                 const engine::Tokenizer& tokenizer,
                 RepeatedPtrField<v1::TokenLogprob>* to) {
  to->Reserve(static_cast<int>(from.size()));
  for (const engine::TokenLogprob& logprob : from) {
    SetLogprob(logprob, tokenizer, to->Add());
  }
}

void SetIds(std::span<const engine::TokenId> from,
            RepeatedField<uint32_t>* to) {
  to->Reserve(static_cast<int>(from.size()));
  for (const engine::TokenId id : from) to->Add(static_cast<uint32_t>(id));
}

void SetUsage(const engine::Usage& from, v1::Usage* to) {
  to->set_prompt_tokens(from.prompt_tokens);
  to->set_generated_tokens(from.generated_tokens);
  to->set_cache_budget_tokens(from.cache_budget_tokens);
  to->set_evicted_tokens(from.evicted_tokens);
  to->set_queue_ms(from.queue_ms);
  to->set_prefill_ms(from.prefill_ms);
  to->set_decode_ms(from.decode_ms);
  to->set_max_new_tokens(from.max_new_tokens);
}

bool HasReport(const engine::Update& update, const ResponseContext& context) {
  return update.cache_report.has_value() &&
         context.report != engine::CacheReportDetail::kNone;
}

}  // namespace

void MergeUpdate(engine::Update next, engine::Update* pending) {
  pending->text += next.text;
  Append(std::move(next.token_ids), &pending->token_ids);
  Append(std::move(next.logprobs), &pending->logprobs);
  if (next.first) {
    pending->first = true;
    pending->seed = next.seed;
    pending->noise_seed = next.noise_seed;
    pending->prompt_logprobs = std::move(next.prompt_logprobs);
  }
  const bool last = next.finish_reason != engine::FinishReason::kNotFinished;
  if (last) {
    pending->finish_reason = next.finish_reason;
    pending->stop_string = std::move(next.stop_string);
    pending->score = next.score;
    pending->cache_report = std::move(next.cache_report);
  }
  if (HasUsage(next)) pending->usage = next.usage;
}

v1::GenerateChunk ToChunk(const engine::Update& update,
                          const ResponseContext& context) {
  v1::GenerateChunk chunk;
  chunk.set_request_id(context.request_id);
  chunk.set_index(update.index);
  chunk.set_text(update.text);
  SetIds(update.token_ids, chunk.mutable_token_ids());
  SetLogprobs(update.logprobs, context.tokenizer, chunk.mutable_logprobs());
  if (update.first) {
    chunk.set_seed(update.seed);
    chunk.set_noise_seed(update.noise_seed);
    SetLogprobs(update.prompt_logprobs, context.tokenizer,
                chunk.mutable_prompt_logprobs());
  }
  if (update.finish_reason != engine::FinishReason::kNotFinished) {
    chunk.set_finish_reason(FromFinish(update.finish_reason));
    chunk.set_stop_string(update.stop_string);
    chunk.set_score(update.score);
  }
  if (HasReport(update, context)) {
    *chunk.mutable_cache_report() =
        ToCacheReport(*update.cache_report, context.report);
  }
  if (HasUsage(update)) SetUsage(update.usage, chunk.mutable_usage());
  return chunk;
}

v1::GenerateResponse ToResponse(const std::vector<engine::Update>& sequences,
                                const ResponseContext& context) {
  v1::GenerateResponse response;
  response.set_request_id(context.request_id);
  for (const engine::Update& update : sequences) {
    v1::Sequence& sequence = *response.add_sequences();
    sequence.set_index(update.index);
    sequence.set_text(update.text);
    SetIds(update.token_ids, sequence.mutable_token_ids());
    SetLogprobs(update.logprobs, context.tokenizer,
                sequence.mutable_logprobs());
    sequence.set_finish_reason(FromFinish(update.finish_reason));
    sequence.set_stop_string(update.stop_string);
    sequence.set_score(update.score);
    if (HasReport(update, context)) {
      *sequence.mutable_cache_report() =
          ToCacheReport(*update.cache_report, context.report);
    }
    // The last to come has the whole one.
    if (HasUsage(update)) SetUsage(update.usage, response.mutable_usage());
    if (!update.first) continue;
    response.set_seed(update.seed);
    response.set_noise_seed(update.noise_seed);
    SetLogprobs(update.prompt_logprobs, context.tokenizer,
                response.mutable_prompt_logprobs());
  }
  std::sort(response.mutable_sequences()->begin(),
            response.mutable_sequences()->end(),
            [](const auto& a, const auto& b) { return a.index() < b.index(); });
  return response;
}

}  // namespace kf::server
