#include "engine/runner.h"

#include <algorithm>
#include <utility>

#include "kernels/core/status.h"

namespace kf::engine {
namespace {

bool EndsPrompt(const Runner::PromptRun& run) {
  return run.first_row + run.rows == run.group->sizes.prompt_tokens;
}

}  // namespace

Runner::Runner(const ModelConfig& config, Decoder& decoder, Backend& backend)
    : layers_(config.layers),
      vocabulary_(static_cast<size_t>(config.vocabulary)),
      decoder_(decoder),
      backend_(backend) {}

absl::Status Runner::Decode(std::span<Sequence* const> sequences) {
  rows_.clear();
  wanted_.clear();
  next_row_ = 0;
  for (Sequence* s : sequences) {
    // Decode step t = 1 feeds the first generated token.
    rows_.push_back({.token = s->next_input,
                     .cache = &s->cache,
                     .score = s->group.score(s->generated, s->stream),
                     .add_scores = s->group.request.cache.decode_scores});
    wanted_.push_back({.group = &s->group, .sequence = s});
  }
  KF_RETURN_IF_ERROR(decoder_.DecodeStep(rows_));
  for (Sequence* s : sequences) {
    ++s->cache.fed;
    if (s->group.sizes.grows) s->fed_tokens.push_back(s->next_input);
  }
  return absl::OkStatus();
}

absl::Status Runner::Replay(SequenceGroup& group, int32_t tokens) {
  rows_.clear();
  for (const auto& s : group.sequences) {
    if (s->finished) continue;
    const auto again =
        std::span(s->fed_tokens).subspan(static_cast<size_t>(s->cache.fed));
    for (int32_t ahead = 0; ahead < tokens; ++ahead) {
      rows_.push_back({.token = again[static_cast<size_t>(ahead)],
                       .cache = &s->cache,
                       .score = {},
                       .add_scores = false,
                       .ahead = ahead});
    }
  }
  KF_RETURN_IF_ERROR(decoder_.DecodeStep(rows_));
  for (const auto& s : group.sequences) {
    if (!s->finished) s->cache.fed += tokens;
  }
  return absl::OkStatus();
}

absl::Status Runner::Prefill(int32_t layer, std::span<const PromptRun> runs) {
  pieces_.clear();
  if (layer + 1 == layers_) {
    wanted_.clear();
    next_row_ = 0;
  }
  for (const PromptRun& run : runs) {
    SequenceGroup& group = *run.group;
    const bool all = group.request.output.prompt_logprobs && !group.prompt_done;
    pieces_.push_back({.prompt = group.request.prompt,
                       .first_row = run.first_row,
                       .rows = run.rows,
                       .workspace = group.workspace,
                       .cache = &group.first().cache,
                       .score = group.score(0, 0),
                       .score_first_row = group.score_first_row(),
                       .want_all_rows = all});
    if (layer + 1 < layers_) continue;
    const int32_t end = run.first_row + run.rows;
    const int32_t first = all ? run.first_row : EndsPrompt(run) ? end - 1 : end;
    for (int32_t row = first; row < end; ++row)
      wanted_.push_back({.group = &group, .prompt_row = row});
  }
  KF_RETURN_IF_ERROR(decoder_.PromptSlice(layer, pieces_));
  return ReadCutLayer(layer, runs);
}

absl::StatusOr<std::span<const Runner::LogitsRow>> Runner::NextLogits() {
  const size_t first = next_row_;
  const size_t rows =
      std::min(static_cast<size_t>(kLogitRows), wanted_.size() - first);
  const auto wanted = std::span(wanted_).subspan(first, rows);
  if (wanted.empty()) return wanted;
  KF_RETURN_IF_ERROR(decoder_.ComputeLogits(static_cast<int64_t>(first),
                                            static_cast<int64_t>(rows)));
  std::span<const float> logits;
  if (!backend_.SamplesRows()) {
    KF_ASSIGN_OR_RETURN(logits,
                        decoder_.ReadLogits(static_cast<int64_t>(rows)));
  }
  for (size_t i = 0; i < wanted.size(); ++i) {
    wanted[i].memory = decoder_.logits() + i * vocabulary_;
    if (logits.empty()) continue;
    wanted[i].logits = logits.subspan(i * vocabulary_, vocabulary_);
  }
  next_row_ = first + rows;
  return wanted;
}

// A layer is read when it has been cut: scope MODEL cuts all of them at the
// end.
absl::Status Runner::ReadCutLayer(int32_t layer,
                                  std::span<const PromptRun> runs) {
  for (const PromptRun& run : runs) {
    SequenceGroup& group = *run.group;
    if (group.request.cache_report == CacheReportDetail::kNone ||
        !EndsPrompt(run) || group.prompt_done) {
      continue;
    }
    CacheState& state = group.cache_after_prompt;
    if (group.sizes.rules.scope == SelectionScope::kModel) {
      if (layer + 1 < layers_) continue;
      KF_ASSIGN_OR_RETURN(state, ReadCache(group.first()));
    } else {
      KF_ASSIGN_OR_RETURN(auto held, ReadLayer(group.first(), layer));
      state.push_back(std::move(held));
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<CacheState> Runner::ReadCache(const Sequence& sequence) const {
  CacheState state;
  for (int32_t layer = 0; layer < layers_; ++layer) {
    KF_ASSIGN_OR_RETURN(auto held, ReadLayer(sequence, layer));
    state.push_back(std::move(held));
  }
  return state;
}

absl::StatusOr<std::vector<HeldTokens>> Runner::ReadLayer(
    const Sequence& sequence, int32_t layer) const {
  const SequenceCache& cache = sequence.cache;
  return backend_.ReadHeld(decoder_.shape(), cache.span(layer),
                           cache.held(layer), cache.free_slot(layer));
}

}  // namespace kf::engine
