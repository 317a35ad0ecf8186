// EngineCore's part between rows of logits and what clients are told.
#include <numeric>
#include <utility>

#include "engine/cache/cache_plan.h"
#include "engine/core.h"
#include "kernels/core/status.h"

namespace kf::engine {
namespace {

Retention CountHolders(const CacheState& state, int32_t prompt_tokens) {
  Retention kept;
  kept.holders.resize(static_cast<size_t>(prompt_tokens));
  for (const auto& layer : state) {
    for (const HeldTokens& head : layer) {
      ++kept.heads;
      for (const int32_t position : head.positions) {
        if (position >= prompt_tokens) break;  // ascending: the answer's
        ++kept.holders[static_cast<size_t>(position)];
      }
    }
  }
  return kept;
}

// What a sequence that evicts nothing, and scores nothing, holds when it is in
// its cache: all that it has been fed.
CacheState HoldsAll(const Sequence& s, const ModelConfig& config) {
  HeldTokens held;
  held.positions.resize(static_cast<size_t>(s.group.sizes.prompt_tokens) +
                        s.fed_tokens.size());
  std::iota(held.positions.begin(), held.positions.end(), 0);
  held.scores.resize(held.positions.size(), 0.0F);
  const std::vector<HeldTokens> layer(static_cast<size_t>(config.kv_heads),
                                      held);
  return CacheState(static_cast<size_t>(config.layers), layer);
}

}  // namespace

// All samples of a prompt read its last row; beams start as one.
absl::Status EngineCore::NextRows() {
  KF_ASSIGN_OR_RETURN(rows_, runner_.NextLogits());
  const std::span<const Runner::LogitsRow> rows = rows_;
  readings_.clear();
  for (size_t i = 0; i < rows.size(); ++i) {
    if (!rows[i].EndsPrompt()) {
      readings_.push_back({.row = i, .sequence = rows[i].sequence});
      continue;
    }
    if (rows[i].group->prompt_done) {  // a replay: the row has been read before
      readings_.push_back({.row = i});
      continue;
    }
    for (const auto& s : rows[i].group->sequences) {
      readings_.push_back({.row = i, .sequence = s.get()});
      if (rows[i].group->beams != nullptr) break;
    }
  }
  return absl::OkStatus();
}

// What a row comes to depends on the row and its own sequence alone, so rows
// are read in any order; clients hear of them in order, from this thread.
absl::Status EngineCore::TakeRows() {
  const std::span<const Runner::LogitsRow> rows = rows_;
  KF_RETURN_IF_ERROR(reader_.Finish(rows, readings_));
  for (size_t first = 0, end = 0; first < readings_.size(); first = end) {
    while (end < readings_.size() &&
           readings_[end].row == readings_[first].row) {
      ++end;
    }
    const Runner::LogitsRow& row = rows[readings_[first].row];
    const auto readings = std::span(readings_).subspan(first, end - first);
    if (row.sequence == nullptr) {
      TakePromptRow(row, readings);
    } else {
      Count(*row.sequence, row.sequence->cache.seen());
      TakeReading(readings.front());
    }
  }
  return absl::OkStatus();
}

void EngineCore::TakePromptRow(const Runner::LogitsRow& row,
                               std::span<Reading> readings) {
  SequenceGroup& group = *row.group;
  // A bad row has ended the group; the rest of its rows is of no use.
  if (!groups_.contains(group.id)) return;
  const TimePoint now = parts_.clock.Now();
  if (!row.EndsPrompt()) {
    TokenEmitter::Choice& choice = readings.front().choice;
    if (choice.bad) {
      FinishAll(group, FinishReason::kError, now);
    } else {
      group.prompt_logprobs.push_back(std::move(*choice.logprob));
    }
    return;
  }
  const bool replay = group.prompt_done.has_value();
  if (!replay) group.prompt_done = now;
  ReleaseWorkspace(group);
  if (const int32_t evicted = group.first().cache.evicted(); evicted > 0) {
    observer_->OnEvicted(static_cast<uint32_t>(evicted));
  }
  if (auto status = caches_->Fork(group); !status.ok()) {
    Fail(group.id, status);
    return;
  }
  if (!group.sizes.grows) {
    const CachePages pages = CountPages(group.sizes, parts_.config.layers);
    scheduler_.Shrink(group.id, /*rows=*/0, pages.prompt - pages.kept);
  }
  for (const auto& s : group.sequences) {
    if (!s->finished) Count(*s, s->cache.seen());
  }
  if (replay) return;
  if (group.sizes.max_new_tokens == 0) {
    FinishAll(group, FinishReason::kLength, now);
    return;
  }
  for (Reading& reading : readings) TakeReading(reading);
}

void EngineCore::TakeReading(Reading& reading) {
  Sequence& s = *reading.sequence;
  if (s.group.beams != nullptr) {
    TakeBeamRow(s.group, reading);
  } else {
    TakeToken(s, std::move(reading.choice));
  }
}

void EngineCore::TakeToken(Sequence& s, TokenEmitter::Choice choice) {
  const TimePoint now = parts_.clock.Now();
  const std::optional<TimePoint> previous = s.last_token;
  Update update = emitter_.Next(s, std::move(choice), now);
  if (!update.token_ids.empty()) {
    CountGenerated(1);
    if (previous) {
      observer_->OnToken(ToSeconds(now - *previous));
    } else {
      observer_->OnFirstToken(ToSeconds(now - s.group.arrival));
    }
  }
  Emit(s, std::move(update));
}

// Beams choose together, when the rows of all of them are there.
void EngineCore::TakeBeamRow(SequenceGroup& group, Reading& reading) {
  group.failed = group.failed || reading.choice.bad;
  group.beam_rows.push_back(std::move(reading.continuations));
  BeamSearch& beams = *group.beams;
  if (group.beam_rows.size() < beams.live()) return;
  if (group.failed) {
    FinishAll(group, FinishReason::kError, parts_.clock.Now());
    return;
  }
  beams.Advance(group.beam_rows);
  group.beam_rows.clear();
  CountGenerated(static_cast<uint32_t>(group.sequences.size()));
  if (beams.live() == 0) {
    FinishAll(group,
              group.sizes.cut_by_context ? FinishReason::kContext
                                         : FinishReason::kLength,
              parts_.clock.Now());
    return;
  }
  caches_->Reorder(group);
  for (size_t i = 0; i < beams.live(); ++i) {
    group.sequences[i]->next_input = beams.token(i);
    group.sequences[i]->generated = beams.length();
  }
}

// The group's last update waits until its room has been given back.
void EngineCore::Emit(Sequence& s, Update update) {
  SequenceGroup& group = s.group;
  if (update.finish_reason == FinishReason::kNotFinished) {
    group.sink->OnUpdate(std::move(update));
    return;
  }
  AttachReport(s, update);
  s.finished = true;
  group.failed = group.failed || update.finish_reason == FinishReason::kError;
  if (group.live() > 0) {
    ReleaseSequence(s);
    scheduler_.Shrink(group.id, /*rows=*/1,
                      group.sizes.grows
                          ? 0
                          : CountPages(group.sizes, parts_.config.layers).each);
    group.sink->OnUpdate(std::move(update));
    return;
  }
  std::vector<Update> last;
  last.push_back(std::move(update));
  End(group.id, std::move(last), absl::OkStatus());
}

void EngineCore::FinishAll(SequenceGroup& group,
                           FinishReason reason,
                           TimePoint now) {
  group.failed = group.failed || reason == FinishReason::kError;
  std::vector<Update> updates = LastUpdates(group, reason, now);
  End(group.id, std::move(updates), absl::OkStatus());
}

std::vector<Update> EngineCore::LastUpdates(SequenceGroup& group,
                                            FinishReason reason,
                                            TimePoint now) {
  std::vector<Update> updates;
  if (group.beams != nullptr) {
    const std::vector<BeamSearch::Result> best = group.beams->Best();
    for (const auto& s : group.sequences) {
      s->generated = s->index < best.size()
                         ? static_cast<uint32_t>(best[s->index].tokens.size())
                         : 0;
    }
    if (group.first().generated > 0) {
      observer_->OnFirstToken(ToSeconds(now - group.arrival));
    }
    for (size_t i = 0; i < best.size(); ++i) {
      Sequence& s = *group.sequences[i];
      updates.push_back(emitter_.FinishBeam(s, best[i], reason, now));
      AttachReport(s, updates.back());
    }
    return updates;
  }
  for (const auto& s : group.sequences) {
    if (s->finished) continue;
    updates.push_back(emitter_.Finish(*s, reason, now));
    AttachReport(*s, updates.back());
  }
  return updates;
}

void EngineCore::AttachReport(const Sequence& s, Update& update) const {
  const SequenceGroup& group = s.group;
  if (group.request.cache_report == CacheReportDetail::kNone ||
      !group.prompt_done) {
    return;
  }
  CacheReport& report = update.cache_report.emplace();
  report.budget_tokens = group.budget_tokens();
  if (report.budget_tokens > 0) {
    report.recent_tokens = static_cast<uint32_t>(group.sizes.recent);
  }
  const bool full = group.request.cache_report == CacheReportDetail::kFull;
  const int32_t n = group.sizes.prompt_tokens;
  report.kept_after_prompt = CountHolders(group.cache_after_prompt, n);
  if (full) report.after_prompt = group.cache_after_prompt;
  auto state = group.replayed()
                   ? runner_.ReadCache(s)
                   : absl::StatusOr<CacheState>(HoldsAll(s, parts_.config));
  if (!state.ok()) return;
  report.kept_at_end = CountHolders(*state, n);
  if (full) report.at_end = *std::move(state);
}

void EngineCore::CountGenerated(uint32_t tokens) {
  report_.generated += static_cast<int32_t>(tokens);
  observer_->OnGenerated(tokens);
}

}  // namespace kf::engine
