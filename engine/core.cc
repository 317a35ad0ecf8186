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
      // Where a device works on, the time until a call returns says nothing.
      pacer_(parts_.backend.SamplesRows() ? Duration::zero()
                                          : parts_.prefill_slice_time),
      caches_(std::move(caches)),
      runner_(parts_.config, parts_.decoder, parts_.backend),
      emitter_(
          parts_.tokenizer, parts_.config.vocabulary, parts_.backend.workers()),
      reader_(parts_.config.vocabulary, parts_.backend, emitter_) {}

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
  const StepPlan& plan = plan_;
  StepReport report;
  // The room of those who leave may be what the others grow into.
  scheduler_.PlanDecode(start, plan_);
  Drop(plan, start);
  Preempt(plan);
  if (!plan.drops.empty() || !plan.preempt.empty()) Deliver();
  report.decode_seconds = TimeOf([&] { StartDecode(plan, report); });
  // Until rows are taken nothing depends on the step's tokens, which a device
  // chooses meanwhile.
  scheduler_.PaceWork(pacer_.Work());
  scheduler_.PlanPrompts(plan_);
  Admit(plan, start);
  Deliver();
  report.decode_seconds += TimeOf([&] { TakeFirstRows(report); });
  size_t ahead = 0;
  report.prefill_seconds = TimeOf([&] { ahead = RunPrefillAhead(plan); });
  report.decode_seconds += TimeOf([&] { FinishDecode(plan, report); });
  Deliver();
  report.prefill_seconds +=
      TimeOf([&] { RunPrefill(std::span(plan.prefill).subspan(ahead)); });
  pacer_.Observe(plan.paced_work, report.prefill_seconds);
  report.replay_seconds = TimeOf([&] { RunReplay(plan); });
  Deliver();
  const int64_t layers = parts_.config.layers;
  report.prompt_tokens =
      static_cast<int32_t>((plan.prefill_token_layers + layers / 2) / layers);
  report.prefilled = !plan.prefill.empty() || !plan.replay.empty();
  report.seconds = ToSeconds(parts_.clock.Now() - start);
  observer_->OnStep(report);
}

double EngineCore::TimeOf(absl::FunctionRef<void()> work) const {
  const TimePoint start = parts_.clock.Now();
  work();
  return ToSeconds(parts_.clock.Now() - start);
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
        ending.updates = LastUpdates(group, FinishReason::kTimeLimit, now);
        break;
    }
    LeaveQueue(group);
    Release(group);
    endings_.push_back(std::move(ending));
  }
}

// Memory goes back, and what has been computed with it; what the client has
// been told, and what that depends on, stays.
void EngineCore::Preempt(const StepPlan& plan) {
  for (const RequestId id : plan.preempt) {
    SequenceGroup& group = *groups_.at(id);
    Release(group);
    for (const auto& s : group.sequences) s->cache.fed = 0;
    if (!group.prompt_done) {
      group.prompt_logprobs.clear();
      group.cache_after_prompt.clear();
    }
    group.preempted = true;
    ++report_.preempted;
    report_.preempted_tokens += group.sizes.prompt_tokens;
    observer_->OnPreempted();
  }
}

void EngineCore::Admit(const StepPlan& plan, TimePoint now) {
  for (const RequestId id : plan.admit) {
    SequenceGroup& group = *groups_.at(id);
    LeaveQueue(group);
    const bool again = group.admitted.has_value();
    if (!again) group.admitted = now;
    caches_->Open(group);
    group.workspace = parts_.decoder.workspace_pool().Take(
        CeilDiv(group.sizes.prompt_tokens, kPageTokens));
    Count(group.first(), group.first().cache.seen());
    if (again) continue;
    observer_->OnAdmitted(ToSeconds(now - group.arrival),
                          static_cast<uint32_t>(group.sizes.prompt_tokens),
                          group.budget_tokens());
  }
}

void EngineCore::StartDecode(const StepPlan& plan, StepReport& report) {
  decoding_.clear();
  evicted_ = 0;
  decoded_ = absl::OkStatus();
  if (plan.decode.empty()) return;
  for (const RequestId id : plan.decode) {
    for (const auto& s : groups_.at(id)->sequences) {
      if (s->finished) continue;
      evicted_ +=
          static_cast<uint32_t>(s->cache.evicted(1) - s->cache.evicted());
      decoding_.push_back(s.get());
    }
  }
  report.decode_rows = static_cast<int32_t>(decoding_.size());
  const Duration attention = parts_.decoder.attention_time();
  decoded_ = caches_->PrepareStep(decoding_);
  if (decoded_.ok()) decoded_ = runner_.Decode(decoding_);
  report.attention_seconds =
      ToSeconds(parts_.decoder.attention_time() - attention);
  if (decoded_.ok()) StartDecoded(report);
}

void EngineCore::TakeFirstRows(StepReport& report) {
  if (decoding_.empty()) return;
  while (decoded_.ok() && runner_.logits_left()) {
    TakeDecoded(report);
    if (decoded_.ok()) StartDecoded(report);
  }
}

void EngineCore::FinishDecode(const StepPlan& plan, StepReport& report) {
  if (decoding_.empty()) return;
  if (decoded_.ok()) TakeDecoded(report);
  if (!decoded_.ok()) {
    for (const RequestId id : plan.decode) Fail(id, decoded_);
  } else if (evicted_ > 0) {
    observer_->OnEvicted(evicted_);
  }
}

void EngineCore::StartDecoded(StepReport& report) {
  decoded_ = NextRows();
  if (!decoded_.ok()) return;
  report.sampling_seconds +=
      TimeOf([&] { decoded_ = reader_.Start(rows_, readings_); });
}

void EngineCore::TakeDecoded(StepReport& report) {
  report.sampling_seconds += TimeOf([&] { decoded_ = TakeRows(); });
}

// Only where that overlaps: elsewhere the tokens would come later for it. A
// last layer writes the logits that the host may still have to read.
size_t EngineCore::RunPrefillAhead(const StepPlan& plan) {
  if (!reader_.waits()) return 0;
  size_t ahead = 0;
  while (ahead < plan.prefill.size() &&
         plan.prefill[ahead].layer + 1 < parts_.config.layers) {
    RunPrefillCall(plan.prefill[ahead++]);
  }
  return ahead;
}

void EngineCore::RunPrefill(std::span<const PrefillCall> calls) {
  for (const PrefillCall& call : calls) RunPrefillCall(call);
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
  absl::Status status = runner_.Prefill(call.layer, runs);
  if (call.layer + 1 == parts_.config.layers) {
    while (status.ok() && runner_.logits_left()) {
      status = NextRows();
      if (status.ok()) status = reader_.Start(rows_, readings_);
      if (status.ok()) status = TakeRows();
    }
  }
  if (!status.ok()) {
    for (const RequestId id : ids) Fail(id, status);
  }
}

void EngineCore::RunReplay(const StepPlan& plan) {
  std::vector<Sequence*> live;
  for (const ReplayPiece& piece : plan.replay) {
    const auto found = groups_.find(piece.id);
    if (found == groups_.end()) continue;  // its prompt's call failed
    SequenceGroup& group = *found->second;
    live.clear();
    for (const auto& s : group.sequences) {
      if (!s->finished) live.push_back(s.get());
    }
    absl::Status status = caches_->PrepareStep(live, piece.tokens);
    if (status.ok()) status = runner_.Replay(group, piece.tokens);
    if (!status.ok()) {
      Fail(piece.id, status);
      continue;
    }
    for (Sequence* s : live) Count(*s, s->cache.seen());
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
    LeaveQueue(*group);
    scheduler_.Cancel(group->id);
    Release(*group);
    endings_.push_back(
        {.group = std::move(group), .updates = {}, .status = status});
  }
  scheduler_.Plan(parts_.clock.Now());  // takes the cancelled ones out
  Deliver();
}

// No more waiting, if it was.
void EngineCore::LeaveQueue(SequenceGroup& group) {
  if (!group.admitted) {
    ++report_.left_queue;
    report_.left_queue_tokens += group.sizes.prompt_tokens;
  } else if (group.preempted) {
    group.preempted = false;
    --report_.preempted;
    report_.preempted_tokens -= group.sizes.prompt_tokens;
  }
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
  } else if (ending.group->failed) {
    observer_->OnFailed(absl::StatusCode::kInternal);
  } else {
    observer_->OnSucceeded(ending.updates.front().finish_reason,
                           ending.updates.front().usage,
                           ToSeconds(now - ending.group->arrival));
  }
}

}  // namespace kf::engine
