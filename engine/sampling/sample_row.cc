#include "engine/sampling/sample_row.h"

#include <algorithm>
#include <cmath>

#include "kernels/core/status.h"

namespace kf::engine {
namespace {

LogitChange BiasOf(TokenId id, double bias) {
  LogitChange change;
  change.id = id;
  change.banned = bias <= kBanningBias;
  change.bias = change.banned ? 0.0 : bias;
  return change;
}

}  // namespace

bool RowCanBeSampled(const SamplingParams& params) {
  return params.typical_p == 0.0 || params.typical_p == 1.0;
}

bool RowCanBeDescribed(const OutputParams& output) {
  return output.top_logprobs <= static_cast<uint32_t>(kMostTopLogprobs);
}

SampleRow MakeSampleRow(const Sampler::Input& input,
                        std::vector<LogitChange>& changes) {
  const SamplingParams& params = *input.params;
  changes.clear();
  if (input.history != nullptr && HasPenalties(params)) {
    for (const auto& [id, count] : input.history->counts()) {
      const auto bias = params.logit_bias.find(id);
      LogitChange change =
          BiasOf(id, bias == params.logit_bias.end() ? 0.0 : bias->second);
      change.seen = true;
      change.generated = count.generated;
      changes.push_back(change);
    }
    for (const auto& [id, bias] : params.logit_bias) {
      if (!input.history->counts().contains(id)) {
        changes.push_back(BiasOf(id, bias));
      }
    }
  } else {
    for (const auto& [id, bias] : params.logit_bias) {
      changes.push_back(BiasOf(id, bias));
    }
  }
  SampleRow row;
  row.changes = changes;
  row.forbidden = input.forbidden;
  row.options.temperature = params.temperature;
  row.options.top_p = params.top_p;
  row.options.min_p = params.min_p;
  row.options.repetition_penalty = params.repetition_penalty;
  row.options.presence_penalty = params.presence_penalty;
  row.options.frequency_penalty = params.frequency_penalty;
  row.options.seed = input.seed;
  row.options.step = input.step;
  row.options.stream = input.stream;
  row.options.top_k = params.top_k;
  return row;
}

void AskForLogprobs(uint32_t top, int32_t vocabulary, SampleOptions& options) {
  options.logprobs = true;
  options.top_logprobs =
      static_cast<int32_t>(std::min(top, static_cast<uint32_t>(vocabulary)));
}

TokenLogprob LogprobOf(const SampledRow& row) {
  KF_CHECK(row.token.state == SampleState::kChosen);
  const auto largest = static_cast<double>(row.token.largest);
  const double log_sum = std::log(row.token.exp_sum);
  const auto logprob = [&](float logit) {
    return (static_cast<double>(logit) - largest) - log_sum;
  };
  TokenLogprob result;
  result.id = row.token.id;
  result.logprob = logprob(row.token.logit);
  result.rank = row.token.rank;
  for (const SampledRow::Top& top : row.top) {
    TokenLogprob& entry = result.top.emplace_back();
    entry.id = top.id;
    entry.logprob = logprob(top.logit);
    entry.rank = static_cast<uint32_t>(result.top.size());
  }
  return result;
}

}  // namespace kf::engine
