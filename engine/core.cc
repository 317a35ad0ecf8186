#include "engine/core.h"

#include <algorithm>
#include <utility>

#include "engine/cache/cache_plan.h"
#include "kernels/core/status.h"

namespace kf::engine {

absl::StatusOr<std::unique_ptr<EngineCore>> EngineCore::Create(Parts parts) {
  KF_ASSIGN_OR_RETURN(
      auto caches,
      CacheStore::Create(parts.config, parts.decoder.shape(),
                         parts.limits.max_batch, parts.backend, parts.pool));
  return std::unique_ptr<EngineCore>(
      new EngineCore(std::move(parts), std::move(caches)));
}

EngineCore::EngineCore(Parts parts, std::unique_ptr<CacheStore> caches)
    : parts_(std::move(parts)),
      scheduler_(parts_.limits),
      caches_(std::move(caches)),
      runner_(parts_.config, parts_.decoder, parts_.backend),
      emitter_(parts_.tokenizer,
               parts_.config.vocabulary,
               parts_.backend.workers()) {}

void EngineCore::SetObserver(EngineObserver* observer) {
  KF_CHECK(idle());
  observer_ = observer == nullptr ? &null_observer_ : observer;
}

void EngineCore::Add(std::unique_ptr<SequenceGroup> group) {
  emitter_.Begin(*group);
  scheduler_.Add(group->scheduler_entry(parts_.config));
  const RequestId id = group->id;
  groups_.emplace(id, std::move(group));
}

void EngineCore::Step() {
  const TimePoint start = parts_.clock.Now();
  const StepPlan plan = scheduler_.Plan(start);
  Drop(plan, start);
  Admit(plan, start);
  Deliver();
  const int32_t decoded = RunDecode(plan);
  Deliver();
  RunPrefill(plan);
  Deliver();
  const int64_t layers = parts_.config.layers;
  observer_->OnStep({.decode_rows = decoded,
                     .prompt_tokens = static_cast<int32_t>(
                         (plan.prefill_token_layers + layers / 2) / layers),
                     .seconds = ToSeconds(parts_.clock.Now() - start)});
}

void EngineCore::Drop(const StepPlan& plan, TimePoint now) {
  for (const StepPlan::Drop& drop : plan.drops) {
    const auto found = groups_.find(drop.id);
    KF_CHECK(found != groups_.end());
    Ending ending{.group = std::move(found->second),
                  .updates = {},
                  .status = absl::OkStatus()};
    groups_.erase(found);
    SequenceGroup& group = *ending.group;
    switch (drop.reason) {
      case DropReason::kCancelled:
        ending.status = absl::CancelledError("the request was cancelled");
        break;
      case DropReason::kDeadline:
        ending.status = absl::DeadlineExceededError("the deadline has passed");
        break;
      case DropReason::kTimeLimit:
        for (const auto& s : group.sequences) {
          if (s->finished) continue;
          ending.updates.push_back(
              emitter_.Finish(*s, FinishReason::kTimeLimit, now));
          AttachReport(*s, ending.updates.back());
        }
        break;
    }
    if (!group.admitted) CountUnqueued(group);
    Release(group);
    endings_.push_back(std::move(ending));
  }
}

void EngineCore::Admit(const StepPlan& plan, TimePoint now) {
  for (const RequestId id : plan.admit) {
    SequenceGroup& group = *groups_.at(id);
    group.admitted = now;
    CountUnqueued(group);
    caches_->Open(group);
    group.workspace = parts_.decoder.workspace_pool().Take(
        CeilDiv(group.sizes.prompt_tokens, kPageTokens));
    Count(group.first(), group.first().cache.seen());
    observer_->OnAdmitted(ToSeconds(now - group.arrival),
                          static_cast<uint32_t>(group.sizes.prompt_tokens),
                          group.request.cache.policy == CachePolicy::kFull
                              ? 0
                              : static_cast<uint32_t>(group.sizes.budget));
  }
}

int32_t EngineCore::RunDecode(const StepPlan& plan) {
  if (plan.decode.empty()) return 0;
  std::vector<Sequence*> rows;
  uint32_t evicted = 0;
  for (const RequestId id : plan.decode) {
    for (const auto& s : groups_.at(id)->sequences) {
      if (s->finished) continue;
      evicted +=
          static_cast<uint32_t>(s->cache.evicted(1) - s->cache.evicted());
      rows.push_back(s.get());
    }
  }
  absl::Status status = caches_->PrepareStep(rows);
  if (status.ok()) {
    status = runner_.Decode(
        rows,
        [this](std::span<const Runner::LogitsRow> read) { TakeRows(read); });
  }
  if (!status.ok()) {
    for (const RequestId id : plan.decode) Fail(id, status);
  } else if (evicted > 0) {
    observer_->OnEvicted(evicted);
  }
  return static_cast<int32_t>(rows.size());
}

void EngineCore::RunPrefill(const StepPlan& plan) {
  for (const PrefillCall& call : plan.prefill) RunPrefillCall(call);
}

void EngineCore::RunPrefillCall(const PrefillCall& call) {
  std::vector<Runner::PromptRun> runs;
  std::vector<RequestId> ids;
  for (const PrefillPiece& piece : call.pieces) {
    // An earlier call of this step may have ended it.
    const auto found = groups_.find(piece.id);
    if (found == groups_.end()) continue;
    runs.push_back({found->second.get(), piece.first_row, piece.rows});
    ids.push_back(piece.id);
  }
  if (runs.empty()) return;
  const absl::Status status = runner_.Prefill(
      call.layer, runs,
      [this](std::span<const Runner::LogitsRow> rows) { TakeRows(rows); });
  if (!status.ok()) {
    for (const RequestId id : ids) Fail(id, status);
  }
}

// What a row comes to depends on the row and its own sequence alone, so rows
// are read by all threads; clients hear of them in order, from this one. All
// sequences of a group read the last row of its prompt.
void EngineCore::TakeRows(std::span<const Runner::LogitsRow> rows) {
  readings_.clear();
  for (size_t i = 0; i < rows.size(); ++i) {
    if (rows[i].EndsPrompt()) {
      for (const auto& s : rows[i].group->sequences) {
        readings_.push_back({.row = i, .sequence = s.get()});
      }
    } else {
      readings_.push_back({.row = i, .sequence = rows[i].sequence});
    }
  }
  parts_.backend.ParallelFor(
      static_cast<int64_t>(readings_.size()), [&](int64_t index, int worker) {
        Reading& reading = readings_[static_cast<size_t>(index)];
        const Runner::LogitsRow& row = rows[reading.row];
        if (reading.sequence == nullptr) {
          reading.choice =
              emitter_.ReadPromptRow(*row.group, row.prompt_row, row.logits);
        } else if (row.group->sizes.max_new_tokens > 0) {
          reading.choice =
              emitter_.ChooseNext(*reading.sequence, row.logits, worker);
        }
      });
  for (size_t first = 0, end = 0; first < readings_.size(); first = end) {
    while (end < readings_.size() && readings_[end].row == readings_[first].row)
      ++end;
    const Runner::LogitsRow& row = rows[readings_[first].row];
    const auto readings = std::span(readings_).subspan(first, end - first);
    if (row.sequence == nullptr) {
      TakePromptRow(row, readings);
    } else {
      Count(*row.sequence, row.sequence->cache.seen());
      TakeToken(*row.sequence, std::move(readings.front().choice));
    }
  }
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
  group.prompt_done = now;
  ReleaseWorkspace(group);
  if (const int32_t evicted = group.first().cache.evicted(); evicted > 0) {
    observer_->OnEvicted(static_cast<uint32_t>(evicted));
  }
  if (auto status = caches_->Fork(group); !status.ok()) {
    Fail(group.id, status);
    return;
  }
  const CachePages pages = CountPages(group.sizes, parts_.config.layers);
  scheduler_.Shrink(group.id, /*rows=*/0, pages.prompt - pages.kept);
  for (const auto& s : group.sequences) Count(*s, s->cache.seen());
  if (group.sizes.max_new_tokens == 0) {
    FinishAll(group, FinishReason::kLength, now);
    return;
  }
  for (Reading& reading : readings) {
    TakeToken(*reading.sequence, std::move(reading.choice));
  }
}

void EngineCore::TakeToken(Sequence& s, TokenEmitter::Choice choice) {
  const TimePoint now = parts_.clock.Now();
  const std::optional<TimePoint> previous = s.last_token;
  Update update = emitter_.Next(s, std::move(choice), now);
  if (!update.token_ids.empty()) {
    ++report_.generated;
    if (previous) {
      observer_->OnToken(ToSeconds(now - *previous));
    } else {
      observer_->OnFirstToken(ToSeconds(now - s.group.arrival));
    }
  }
  Emit(s, std::move(update));
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
  if (group.live() > 0) {
    ReleaseSequence(s);
    scheduler_.Shrink(group.id, /*rows=*/1,
                      CountPages(group.sizes, parts_.config.layers).each);
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
  for (const auto& s : group.sequences) {
    if (!s->finished) Emit(*s, emitter_.Finish(*s, reason, now));
  }
}

void EngineCore::Fail(RequestId id, const absl::Status& status) {
  if (!groups_.contains(id)) return;
  End(id, {},
      absl::InternalError(
          absl::StrCat("a step of the engine failed: ", status.message())));
}

void EngineCore::End(RequestId id,
                     std::vector<Update> updates,
                     absl::Status status) {
  scheduler_.Finish(id);
  const auto found = groups_.find(id);
  Ending ending{.group = std::move(found->second),
                .updates = std::move(updates),
                .status = std::move(status)};
  groups_.erase(found);
  Release(*ending.group);
  endings_.push_back(std::move(ending));
}

void EngineCore::AttachReport(const Sequence& s, Update& update) const {
  const SequenceGroup& group = s.group;
  if (group.request.cache_report == CacheReportDetail::kNone ||
      !group.prompt_done) {
    return;
  }
  CacheReport& report = update.cache_report.emplace();
  report.after_prompt = group.cache_after_prompt;
  if (auto state = runner_.ReadCache(s); state.ok()) {
    report.at_end = std::move(*state);
  }
}

void EngineCore::ReleaseWorkspace(SequenceGroup& group) {
  parts_.decoder.workspace_pool().Give(group.workspace);
  group.workspace.clear();
}

void EngineCore::ReleaseSequence(Sequence& s) {
  caches_->Close(s);
  Count(s, 0);
}

void EngineCore::Release(SequenceGroup& group) {
  ReleaseWorkspace(group);
  for (const auto& s : group.sequences) ReleaseSequence(*s);
}

void EngineCore::EndAll(const absl::Status& status) {
  std::vector<std::unique_ptr<SequenceGroup>> all;
  for (auto& [id, group] : groups_) all.push_back(std::move(group));
  groups_.clear();
  std::sort(all.begin(), all.end(),
            [](const auto& a, const auto& b) { return a->id < b->id; });
  for (auto& group : all) {
    if (!group->admitted) CountUnqueued(*group);
    scheduler_.Cancel(group->id);
    Release(*group);
    endings_.push_back(
        {.group = std::move(group), .updates = {}, .status = status});
  }
  scheduler_.Plan(parts_.clock.Now());  // takes the cancelled ones out
  Deliver();
}

void EngineCore::CountUnqueued(const SequenceGroup& group) {
  ++report_.left_queue;
  report_.left_queue_tokens += group.sizes.prompt_tokens;
}

// Keeps the sum over running sequences, however many there are.
void EngineCore::Count(Sequence& s, int32_t tokens) {
  report_.logical_cache_tokens += tokens - s.counted;
  s.counted = tokens;
}

void EngineCore::Report() {
  report_.running = scheduler_.running();
  report_.pages_free = parts_.pool.free_pages();
  report_.physical_cache_tokens =
      int64_t{parts_.pool.total() - parts_.pool.free_pages()} * kPageTokens /
      parts_.config.layers;
  parts_.report(report_);
  report_.left_queue = 0;
  report_.left_queue_tokens = 0;
  report_.generated = 0;
}

// Room and gauges are up to date before a client learns that its request has
// ended.
void EngineCore::Deliver() {
  Report();
  const TimePoint now = parts_.clock.Now();
  for (Ending& ending : endings_) {
    Observe(ending, now);
    const std::shared_ptr<TokenSink> sink = std::move(ending.group->sink);
    for (Update& update : ending.updates) sink->OnUpdate(std::move(update));
    sink->OnEnd(ending.status);
  }
  endings_.clear();
}

void EngineCore::Observe(const Ending& ending, TimePoint now) {
  if (absl::IsCancelled(ending.status)) {
    observer_->OnCancelled();
  } else if (!ending.status.ok()) {
    observer_->OnFailed(ending.status.code());
  } else if (ending.updates.back().finish_reason == FinishReason::kError) {
    observer_->OnFailed(absl::StatusCode::kInternal);
  } else {
    observer_->OnSucceeded(ending.updates.back().finish_reason,
                           ending.updates.back().usage,
                           ToSeconds(now - ending.group->arrival));
  }
}

}  // namespace kf::engine
