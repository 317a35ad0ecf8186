#include "engine/core.h"

#include <algorithm>
#include <utility>

#include "kernels/core/status.h"

namespace kf::engine {

absl::StatusOr<std::unique_ptr<EngineCore>> EngineCore::Create(Parts parts) {
  const size_t slots = static_cast<size_t>(parts.limits.max_batch) *
                       static_cast<size_t>(parts.config.layers) *
                       static_cast<size_t>(parts.config.kv_heads);
  KF_ASSIGN_OR_RETURN(
      auto free_slots,
      parts.backend.Allocate(slots * sizeof(int32_t), "free slots"));
  return std::unique_ptr<EngineCore>(
      new EngineCore(std::move(parts), std::move(free_slots)));
}

EngineCore::EngineCore(Parts parts, std::unique_ptr<Buffer> free_slots)
    : parts_(std::move(parts)),
      scheduler_(parts_.limits),
      runner_(parts_.config, parts_.decoder, parts_.backend),
      emitter_(
          parts_.tokenizer, parts_.config.vocabulary, parts_.backend.workers()),
      free_slots_(std::move(free_slots)) {
  for (int32_t slot = parts_.limits.max_batch - 1; slot >= 0; --slot) {
    unused_slots_.push_back(slot);
  }
}

void EngineCore::SetObserver(EngineObserver* observer) {
  KF_CHECK(idle());
  observer_ = observer == nullptr ? &null_observer_ : observer;
}

void EngineCore::Add(std::unique_ptr<Sequence> sequence) {
  emitter_.Begin(*sequence);
  scheduler_.Add(sequence->scheduler_entry(parts_.config));
  const RequestId id = sequence->id;
  sequences_.emplace(id, std::move(sequence));
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
    const auto found = sequences_.find(drop.id);
    KF_CHECK(found != sequences_.end());
    Ending ending{.sequence = std::move(found->second),
                  .update = std::nullopt,
                  .status = absl::OkStatus()};
    sequences_.erase(found);
    Sequence& s = *ending.sequence;
    switch (drop.reason) {
      case DropReason::kCancelled:
        ending.status = absl::CancelledError("the request was cancelled");
        break;
      case DropReason::kDeadline:
        ending.status = absl::DeadlineExceededError("the deadline has passed");
        break;
      case DropReason::kTimeLimit:
        ending.update = emitter_.Finish(s, FinishReason::kTimeLimit, now);
        AttachReport(s, *ending.update);
        break;
    }
    if (!s.admitted) {
      ++report_.left_queue;
      report_.left_queue_tokens += s.sizes.prompt_tokens;
    }
    Release(s);
    endings_.push_back(std::move(ending));
  }
}

void EngineCore::Admit(const StepPlan& plan, TimePoint now) {
  for (const RequestId id : plan.admit) {
    Sequence& s = *sequences_.at(id);
    s.admitted = now;
    ++report_.left_queue;
    report_.left_queue_tokens += s.sizes.prompt_tokens;
    s.slot = unused_slots_.back();
    unused_slots_.pop_back();
    SequenceCache& cache = s.cache;
    cache.base = parts_.pool.base();
    cache.kv_heads = parts_.config.kv_heads;
    cache.free_slots = free_slots_->as<int32_t>() + int64_t{s.slot} *
                                                        parts_.config.layers *
                                                        parts_.config.kv_heads;
    cache.prompt_tokens = s.sizes.prompt_tokens;
    cache.budget = s.sizes.budget;
    // All of the budget, where there are no scores to choose by.
    cache.recent = s.scored() ? s.sizes.recent : s.sizes.budget;
    for (int32_t layer = 0; layer < parts_.config.layers; ++layer) {
      cache.pages.push_back(parts_.pool.Take(PagesPerLayer(s.sizes)));
    }
    s.workspace = parts_.decoder.workspace_pool().Take(
        CeilDiv(s.sizes.prompt_tokens, kPageTokens));
    Count(s, cache.seen());
    observer_->OnAdmitted(ToSeconds(now - s.arrival),
                          static_cast<uint32_t>(s.sizes.prompt_tokens),
                          s.request.cache.policy == CachePolicy::kFull
                              ? 0
                              : static_cast<uint32_t>(s.sizes.budget));
  }
}

int32_t EngineCore::RunDecode(const StepPlan& plan) {
  if (plan.decode.empty()) return 0;
  std::vector<Sequence*> rows;
  uint32_t evicted = 0;
  for (const RequestId id : plan.decode) {
    Sequence& s = *sequences_.at(id);
    if (s.cache.seen() >= s.cache.budget) ++evicted;
    rows.push_back(&s);
  }
  const absl::Status status = runner_.Decode(
      rows,
      [this](std::span<const Runner::LogitsRow> read) { TakeRows(read); });
  if (!status.ok()) {
    for (const RequestId id : plan.decode) Fail(id, status);
  } else if (evicted > 0) {
    observer_->OnEvicted(evicted);
  }
  return static_cast<int32_t>(plan.decode.size());
}

void EngineCore::RunPrefill(const StepPlan& plan) {
  for (const PrefillCall& call : plan.prefill) RunPrefillCall(call);
}

void EngineCore::RunPrefillCall(const PrefillCall& call) {
  std::vector<Runner::PromptRun> runs;
  std::vector<RequestId> ids;
  for (const PrefillPiece& piece : call.pieces) {
    // An earlier call of this step may have ended it.
    const auto found = sequences_.find(piece.id);
    if (found == sequences_.end()) continue;
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
// are read by all threads; clients hear of them in order, from this one.
void EngineCore::TakeRows(std::span<const Runner::LogitsRow> rows) {
  choices_.resize(rows.size());
  parts_.backend.ParallelFor(static_cast<int64_t>(rows.size()),
                             [&](int64_t index, int worker) {
                               const auto i = static_cast<size_t>(index);
                               choices_[i] = ReadRow(rows[i], worker);
                             });
  for (size_t i = 0; i < rows.size(); ++i) {
    Sequence& s = *rows[i].sequence;
    if (rows[i].row == Runner::kDecodeRow) {
      Count(s, s.cache.seen());
      TakeToken(s, std::move(choices_[i]));
    } else {
      TakePromptRow(s, rows[i].row, std::move(choices_[i]));
    }
  }
}

TokenEmitter::Choice EngineCore::ReadRow(const Runner::LogitsRow& row,
                                         int worker) {
  const Sequence& s = *row.sequence;
  if (row.row != Runner::kDecodeRow) {
    if (row.row + 1 < s.sizes.prompt_tokens) {
      return emitter_.ReadPromptRow(s, row.row, row.logits);
    }
    if (s.sizes.max_new_tokens == 0) return {};
  }
  return emitter_.ChooseNext(s, row.logits, worker);
}

void EngineCore::TakePromptRow(Sequence& s,
                               int32_t row,
                               TokenEmitter::Choice choice) {
  // A bad row has ended the sequence; the rest of its rows is of no use.
  if (!sequences_.contains(s.id)) return;
  if (row + 1 < s.sizes.prompt_tokens) {
    if (choice.bad) {
      Emit(s, emitter_.Finish(s, FinishReason::kError, parts_.clock.Now()));
    } else {
      s.prompt_logprobs.push_back(std::move(*choice.logprob));
    }
    return;
  }
  s.prompt_done = parts_.clock.Now();
  ReleaseWorkspace(s);
  if (s.cache.evicted() > 0) {
    observer_->OnEvicted(static_cast<uint32_t>(s.cache.evicted()));
  }
  if (s.sizes.max_new_tokens == 0) {
    Emit(s, emitter_.Finish(s, FinishReason::kLength, *s.prompt_done));
    return;
  }
  TakeToken(s, std::move(choice));
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
      observer_->OnFirstToken(ToSeconds(now - s.arrival));
    }
  }
  Emit(s, std::move(update));
}

void EngineCore::Emit(Sequence& s, Update update) {
  if (update.finish_reason == FinishReason::kNotFinished) {
    s.sink->OnUpdate(std::move(update));
    return;
  }
  AttachReport(s, update);
  End(s.id, std::move(update), absl::OkStatus());
}

void EngineCore::Fail(RequestId id, const absl::Status& status) {
  if (!sequences_.contains(id)) return;
  End(id, std::nullopt,
      absl::InternalError(
          absl::StrCat("a step of the engine failed: ", status.message())));
}

void EngineCore::End(RequestId id,
                     std::optional<Update> update,
                     absl::Status status) {
  scheduler_.Finish(id);
  const auto found = sequences_.find(id);
  Ending ending{.sequence = std::move(found->second),
                .update = std::move(update),
                .status = std::move(status)};
  sequences_.erase(found);
  Release(*ending.sequence);
  endings_.push_back(std::move(ending));
}

void EngineCore::AttachReport(const Sequence& s, Update& update) const {
  if (s.request.cache_report == CacheReportDetail::kNone || !s.prompt_done)
    return;
  CacheReport report = s.cache_report;
  if (auto state = runner_.ReadCache(s); state.ok()) {
    report.at_end = std::move(*state);
  }
  update.cache_report = std::move(report);
}

void EngineCore::ReleaseWorkspace(Sequence& s) {
  parts_.decoder.workspace_pool().Give(s.workspace);
  s.workspace.clear();
}

void EngineCore::Release(Sequence& s) {
  ReleaseWorkspace(s);
  for (const auto& pages : s.cache.pages) parts_.pool.Give(pages);
  s.cache.pages.clear();
  Count(s, 0);
  if (s.slot >= 0) unused_slots_.push_back(s.slot);
  s.slot = -1;
}

void EngineCore::EndAll(const absl::Status& status) {
  std::vector<std::unique_ptr<Sequence>> all;
  for (auto& [id, sequence] : sequences_) all.push_back(std::move(sequence));
  sequences_.clear();
  std::sort(all.begin(), all.end(),
            [](const auto& a, const auto& b) { return a->id < b->id; });
  for (auto& sequence : all) {
    if (!sequence->admitted) {
      ++report_.left_queue;
      report_.left_queue_tokens += sequence->sizes.prompt_tokens;
    }
    scheduler_.Cancel(sequence->id);
    Release(*sequence);
    endings_.push_back({.sequence = std::move(sequence),
                        .update = std::nullopt,
                        .status = status});
  }
  scheduler_.Plan(parts_.clock.Now());  // takes the cancelled ones out
  Deliver();
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
    const std::shared_ptr<TokenSink> sink = std::move(ending.sequence->sink);
    if (ending.update) sink->OnUpdate(std::move(*ending.update));
    sink->OnEnd(ending.status);
  }
  endings_.clear();
}

void EngineCore::Observe(const Ending& ending, TimePoint now) {
  if (absl::IsCancelled(ending.status)) {
    observer_->OnCancelled();
  } else if (!ending.status.ok()) {
    observer_->OnFailed(ending.status.code());
  } else if (ending.update->finish_reason == FinishReason::kError) {
    observer_->OnFailed(absl::StatusCode::kInternal);
  } else {
    observer_->OnSucceeded(ending.update->finish_reason, ending.update->usage,
                           ToSeconds(now - ending.sequence->arrival));
  }
}

}  // namespace kf::engine
