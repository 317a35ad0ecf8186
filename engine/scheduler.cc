#include "engine/scheduler.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "kernels/backend.h"
#include "kernels/core/status.h"

namespace kf::engine {

namespace {

// Tokens that each sequence has room for in its next step.
int64_t RoomToStep(const SchedulerEntry& entry, int32_t fed) {
  return int64_t{entry.prompt_tokens} + fed + 1;
}

int64_t PagesNow(const SchedulerEntry& entry, int32_t fed) {
  if (!entry.growth) return entry.cache_pages;
  return entry.growth->Pages(entry.rows, RoomToStep(entry, fed));
}

// What a request will take when it grows by a page's tokens.
int64_t NextPages(const SchedulerEntry& entry, int64_t room) {
  if (!entry.growth) return 0;
  return entry.growth->Pages(entry.rows, room + kPageTokens) -
         entry.growth->Pages(entry.rows, room);
}

}  // namespace

int64_t Scheduler::Need(const Waiting& waiting) {
  return PagesNow(waiting.entry, waiting.fed) +
         NextPages(waiting.entry, RoomToStep(waiting.entry, waiting.fed));
}

void Scheduler::Enqueue(const QueueKey& key, const Waiting& waiting) {
  queue_.emplace(key, waiting);
  needs_.insert(Need(waiting));
}

void Scheduler::Forget(const Waiting& waiting) {
  needs_.erase(needs_.find(Need(waiting)));
}

void Scheduler::Add(const SchedulerEntry& entry) {
  KF_CHECK(entry.rows >= 1 && entry.rows <= limits_.max_batch);
  KF_CHECK(entry.cache_pages <= limits_.pool_pages);
  KF_CHECK(entry.prompt_tokens <= limits_.workspace_tokens);
  Enqueue(QueueKey{-int64_t{entry.priority}, arrivals_++},
          Waiting{.entry = entry});
  ExpectExpiry(entry);
}

void Scheduler::ExpectExpiry(const SchedulerEntry& entry) {
  if (entry.deadline) next_expiry_ = std::min(next_expiry_, *entry.deadline);
  if (entry.time_limit) {
    next_expiry_ = std::min(next_expiry_, *entry.time_limit);
  }
}

void StepPlan::Clear() {
  drops.clear();
  preempt.clear();
  admit.clear();
  decode.clear();
  prefill.clear();
  replay.clear();
  prefill_token_layers = 0;
  paced_work = 0;
}

StepPlan Scheduler::Plan(TimePoint now) {
  StepPlan plan;
  Plan(now, plan);
  return plan;
}

void Scheduler::Plan(TimePoint now, StepPlan& plan) {
  PlanDecode(now, plan);
  PlanPrompts(plan);
}

void Scheduler::PlanDecode(TimePoint now, StepPlan& plan) {
  plan.Clear();
  DropEnded(now, plan);
  Grow(plan);
  for (Running& r : running_) {
    if (!Decodes(r)) continue;
    plan.decode.push_back(r.entry.id);
    r.replayed = ++r.fed;
  }
}

void Scheduler::PlanPrompts(StepPlan& plan) {
  // What a preempted request gave back is for those that grow.
  if (plan.preempt.empty()) Admit(plan);
  PlanPrefill(plan);
}

std::vector<Scheduler::Running>::iterator Scheduler::Find(RequestId id) {
  const auto found =
      std::find_if(running_.begin(), running_.end(),
                   [&](const Running& r) { return r.entry.id == id; });
  KF_CHECK(found != running_.end());
  return found;
}

void Scheduler::Shrink(RequestId id, int32_t rows, int64_t pages) {
  Running& r = *Find(id);
  KF_CHECK(rows >= 0 && rows < r.entry.rows);
  KF_CHECK(pages >= 0 && pages <= r.pages);
  r.entry.rows -= rows;
  rows_used_ -= rows;
  if (r.entry.growth) {
    KF_CHECK(pages == 0);
    pages = r.pages - r.entry.growth->Pages(r.entry.rows, r.room);
  }
  r.pages -= pages;
  pages_used_ -= pages;
}

void Scheduler::Finish(RequestId id) {
  const auto found = Find(id);
  Release(*found);
  running_.erase(found);
}

void Scheduler::Release(const Running& running) {
  rows_used_ -= running.entry.rows;
  pages_used_ -= running.pages;
  if (InPrompt(running)) {
    workspace_used_ -= running.entry.prompt_tokens;
  }
}

std::optional<DropReason> Scheduler::WhyDrop(const SchedulerEntry& entry,
                                             TimePoint now) const {
  // At its deadline the caller cancels too: that is the deadline's doing.
  if (entry.deadline && now >= *entry.deadline) return DropReason::kDeadline;
  if (cancelled_.contains(entry.id)) return DropReason::kCancelled;
  if (entry.time_limit && now >= *entry.time_limit) {
    return DropReason::kTimeLimit;
  }
  return std::nullopt;
}

// A step must not take longer because many wait: most steps end here at once.
void Scheduler::DropEnded(TimePoint now, StepPlan& plan) {
  if (cancelled_.empty() && now < next_expiry_) return;
  next_expiry_ = TimePoint::max();
  std::erase_if(queue_, [&](const auto& item) {
    const SchedulerEntry& entry = item.second.entry;
    const auto reason = WhyDrop(entry, now);
    if (reason) {
      plan.drops.push_back({entry.id, *reason});
      Forget(item.second);
    } else {
      ExpectExpiry(entry);
    }
    return reason.has_value();
  });
  std::erase_if(running_, [&](const Running& r) {
    const auto reason = WhyDrop(r.entry, now);
    if (reason) {
      plan.drops.push_back({r.entry.id, *reason});
      Release(r);
    } else {
      ExpectExpiry(r.entry);
    }
    return reason.has_value();
  });
  cancelled_.clear();
}

// In order of rank, so that the first has what there is.
void Scheduler::Grow(StepPlan& plan) {
  std::vector<std::pair<QueueKey, RequestId>>& growing = growing_;
  growing.clear();
  for (const Running& r : running_) {
    if (r.entry.growth && Decodes(r) && r.room < RoomToStep(r.entry, r.fed)) {
      growing.emplace_back(r.key, r.entry.id);
    }
  }
  std::sort(growing.begin(), growing.end());
  for (const auto& [key, id] : growing) {
    // Those behind one that was preempted have been preempted before it.
    if (!GrowOne(id, plan)) return;
  }
}

// False: it has been preempted itself.
bool Scheduler::GrowOne(RequestId id, StepPlan& plan) {
  for (;;) {
    const auto found =
        std::find_if(running_.begin(), running_.end(),
                     [&](const Running& r) { return r.entry.id == id; });
    if (found == running_.end()) return false;
    const int64_t room = RoomToStep(found->entry, found->fed);
    const int64_t pages = found->entry.growth->Pages(found->entry.rows, room);
    const int64_t more = pages - found->pages;
    if (pages_used_ + more <= limits_.pool_pages) {
      found->room = room;
      found->pages = pages;
      pages_used_ += more;
      return true;
    }
    Preempt(LastGrowing(), plan);
  }
}

std::vector<Scheduler::Running>::iterator Scheduler::LastGrowing() {
  auto last = running_.end();
  for (auto r = running_.begin(); r != running_.end(); ++r) {
    if (!r->entry.growth) continue;
    if (last == running_.end() || last->key < r->key) last = r;
  }
  return last;
}

void Scheduler::Preempt(std::vector<Running>::iterator victim, StepPlan& plan) {
  Release(*victim);
  plan.preempt.push_back(victim->entry.id);
  Waiting waiting{.entry = victim->entry, .fed = victim->fed};
  // The prompt's logits have been read.
  if (!InPrompt(*victim)) waiting.entry.logit_row_cost = 0;
  Enqueue(victim->key, waiting);
  running_.erase(victim);
}

bool Scheduler::Fits(const Waiting& waiting, int64_t reserve) const {
  const SchedulerEntry& entry = waiting.entry;
  return rows_used_ + entry.rows <= limits_.max_batch &&
         pages_used_ + Need(waiting) + reserve <= limits_.pool_pages &&
         workspace_used_ + entry.prompt_tokens <= limits_.workspace_tokens;
}

void Scheduler::Start(const QueueKey& key,
                      const Waiting& waiting,
                      StepPlan& plan) {
  const SchedulerEntry& entry = waiting.entry;
  const int64_t pages = PagesNow(entry, waiting.fed);
  rows_used_ += entry.rows;
  pages_used_ += pages;
  workspace_used_ += entry.prompt_tokens;
  plan.admit.push_back(entry.id);
  running_.push_back({.key = key.second < kFirstArrival
                                 ? key
                                 : QueueKey{key.first, admissions_++},
                      .entry = entry,
                      .pages = pages,
                      .room = RoomToStep(entry, waiting.fed),
                      .fed = waiting.fed});
}

// In the queue's order. One that does not fit may be passed by those behind it,
// of any priority, but only so often: then the queue stops at it, and what ends
// makes room for it alone. All that grow keep the room to grow by a page, so
// that a newcomer does not at once cost one of them its place.
void Scheduler::Admit(StepPlan& plan) {
  int64_t reserve = 0;
  for (const Running& r : running_) reserve += NextPages(r.entry, r.room);
  std::vector<Waiting*>& passed = passed_;  // do not fit, and may be passed
  passed.clear();
  for (auto next = queue_.begin(); next != queue_.end();) {
    // Nobody fits: spares the way through a long queue.
    if (rows_used_ == limits_.max_batch) return;
    if (pages_used_ + reserve + *needs_.begin() > limits_.pool_pages) return;
    Waiting& waiting = next->second;
    if (!Fits(waiting, reserve)) {
      if (waiting.skips >= limits_.max_skips) return;
      passed.push_back(&waiting);
      ++next;
      continue;
    }
    Start(next->first, waiting, plan);
    Forget(waiting);
    reserve += NextPages(waiting.entry, running_.back().room);
    next = queue_.erase(next);
    for (Waiting* before : passed) ++before->skips;
    const bool all_may_wait = std::all_of(
        passed.begin(), passed.end(),
        [this](const Waiting* w) { return w->skips < limits_.max_skips; });
    if (!all_may_wait) return;
  }
}

// Whose prompt, or replay, is served first: the highest priority, then the
// earliest.
Scheduler::Running* Scheduler::NextUndone() {
  Running* next = nullptr;
  for (Running& r : running_) {
    if (Decodes(r)) continue;
    if (next == nullptr || r.key < next->key) next = &r;
  }
  return next;
}

// Of the next rows in the prompt's layer.
int64_t Scheduler::SliceCost(const Running& prompt, int32_t rows) const {
  const bool has_logits = prompt.layer + 1 == limits_.layers;
  return int64_t{rows} * (1 + (has_logits ? prompt.entry.logit_row_cost : 0));
}

int64_t Scheduler::PacedCost(const Running& prompt, int32_t rows) const {
  const int64_t cost = SliceCost(prompt, rows);
  if (limits_.context_of_a_row == 0) return cost;
  const int64_t keys = int64_t{rows} * (prompt.row + rows / 2);
  return cost + keys / limits_.context_of_a_row;
}

bool Scheduler::FitsWork(const Running& prompt,
                         int32_t rows,
                         const WorkLeft& left) const {
  return SliceCost(prompt, rows) <= left.slice &&
         PacedCost(prompt, rows) <= left.paced;
}

// All the rows left in the layer, or as many whole row tiles as there is work
// left for; 0: none. The first prompt of a step gets one tile whatever it
// costs, so that every step goes on.
int32_t Scheduler::LeadRows(const Running& lead,
                            const WorkLeft& left,
                            bool first) const {
  const int32_t all = lead.entry.prompt_tokens - lead.row;
  const int32_t most = std::min(all, limits_.call_rows);
  if (most == all && FitsWork(lead, all, left)) return all;
  int32_t rows = most / kPromptRowTile * kPromptRowTile;
  while (rows > 0 && !FitsWork(lead, rows, left)) rows -= kPromptRowTile;
  return first ? std::max(rows, std::min(all, kPromptRowTile)) : rows;
}

void Scheduler::TakeRows(Running& prompt, int32_t rows, PrefillCall& call) {
  call.pieces.push_back({prompt.entry.id, prompt.row, rows});
  prompt.row += rows;
  if (prompt.row < prompt.entry.prompt_tokens) return;
  prompt.row = 0;
  if (++prompt.layer == limits_.layers) {
    workspace_used_ -= prompt.entry.prompt_tokens;
  }
}

// A call's rows are those of a decode step. As with prompts, the first of a
// step gets something whatever it costs.
bool Scheduler::TakeReplay(Running& lead, WorkLeft& left, StepPlan& plan) {
  const int64_t cost = int64_t{lead.entry.rows} * limits_.layers;  // of a token
  int64_t tokens = std::min<int64_t>(std::min(left.slice, left.paced) / cost,
                                     limits_.max_batch / lead.entry.rows);
  if (plan.prefill.empty() && plan.replay.empty()) {
    tokens = std::max<int64_t>(tokens, 1);
  }
  tokens = std::min<int64_t>(tokens, lead.fed - lead.replayed);
  if (tokens == 0) return false;
  plan.replay.push_back({lead.entry.id, static_cast<int32_t>(tokens)});
  plan.prefill_token_layers += tokens * cost;
  left.slice -= tokens * cost;
  left.paced -= tokens * cost;
  lead.replayed += static_cast<int32_t>(tokens);
  return true;
}

// The first prompt takes what it can; others at the same layer share the call
// if all that they have left in the layer fits, so that prompts which started
// together stay together.
void Scheduler::PlanPrefill(StepPlan& plan) {
  const int64_t paced = plan.decode.empty() ? INT64_MAX : paced_work_;
  WorkLeft left = {int64_t{limits_.slice_tokens} * limits_.layers, paced};
  while (Running* lead = NextUndone()) {
    const bool first = plan.prefill.empty() && plan.replay.empty();
    // What the first one got may have cost more than there was.
    if ((left.slice <= 0 || left.paced <= 0) && !first) return;
    if (!InPrompt(*lead)) {
      if (!TakeReplay(*lead, left, plan)) return;
      continue;
    }
    const int32_t lead_rows = LeadRows(*lead, left, first);
    if (lead_rows == 0) return;
    PrefillCall call{.layer = lead->layer, .pieces = {}};
    const int32_t layer = lead->layer;
    int64_t rows = 0;
    const auto take = [&](Running& prompt, int32_t count) {
      const int64_t cost = PacedCost(prompt, count);
      left.slice -= SliceCost(prompt, count);
      left.paced -= cost;
      plan.paced_work += cost;
      rows += count;
      TakeRows(prompt, count, call);
    };
    take(*lead, lead_rows);
    for (Running& other : running_) {
      if (&other == lead || other.layer != layer) continue;
      const int32_t all = other.entry.prompt_tokens - other.row;
      if (all > limits_.call_rows - rows) continue;
      if (!FitsWork(other, all, left)) continue;
      take(other, all);
    }
    plan.prefill_token_layers += rows;
    plan.prefill.push_back(std::move(call));
  }
}

absl::Status QueueBound::Add(int32_t prompt_tokens) {
  if (requests_ >= max_requests_) {
    return absl::ResourceExhaustedError(
        absl::StrCat("the queue is full: ", requests_,
                     " requests wait, max_queue_requests is ", max_requests_));
  }
  if (requests_ > 0 && tokens_ + prompt_tokens > max_tokens_) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "the queue is full: ", tokens_, " prompt tokens wait, ", prompt_tokens,
        " more would pass max_queue_tokens, ", max_tokens_));
  }
  ++requests_;
  tokens_ += prompt_tokens;
  return absl::OkStatus();
}

void QueueBound::Remove(int32_t requests, int64_t tokens) {
  requests_ -= requests;
  tokens_ -= tokens;
  KF_CHECK(requests_ >= 0 && tokens_ >= 0);
}

}  // namespace kf::engine
