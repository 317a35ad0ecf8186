#include "engine/scheduler.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "kernels/backend.h"
#include "kernels/core/status.h"

namespace kf::engine {

void Scheduler::Add(const SchedulerEntry& entry) {
  KF_CHECK(entry.rows >= 1 && entry.rows <= limits_.max_batch);
  KF_CHECK(entry.cache_pages <= limits_.pool_pages);
  KF_CHECK(entry.prompt_tokens <= limits_.workspace_tokens);
  queue_.emplace(QueueKey{-int64_t{entry.priority}, arrivals_++},
                 Waiting{.entry = entry});
  ExpectExpiry(entry);
}

void Scheduler::ExpectExpiry(const SchedulerEntry& entry) {
  if (entry.deadline) next_expiry_ = std::min(next_expiry_, *entry.deadline);
  if (entry.time_limit) {
    next_expiry_ = std::min(next_expiry_, *entry.time_limit);
  }
}

StepPlan Scheduler::Plan(TimePoint now) {
  StepPlan plan;
  DropEnded(now, plan);
  for (const Running& r : running_) {
    if (r.layer == limits_.layers) plan.decode.push_back(r.entry.id);
  }
  Admit(plan);
  PlanPrefill(plan);
  return plan;
}

std::vector<Scheduler::Running>::iterator Scheduler::Find(RequestId id) {
  const auto found =
      std::find_if(running_.begin(), running_.end(),
                   [&](const Running& r) { return r.entry.id == id; });
  KF_CHECK(found != running_.end());
  return found;
}

void Scheduler::Shrink(RequestId id, int32_t rows, int64_t pages) {
  SchedulerEntry& entry = Find(id)->entry;
  KF_CHECK(rows >= 0 && rows < entry.rows);
  KF_CHECK(pages >= 0 && pages <= entry.cache_pages);
  entry.rows -= rows;
  entry.cache_pages -= pages;
  rows_used_ -= rows;
  pages_used_ -= pages;
}

void Scheduler::Finish(RequestId id) {
  const auto found = Find(id);
  Release(*found);
  running_.erase(found);
}

void Scheduler::Release(const Running& running) {
  rows_used_ -= running.entry.rows;
  pages_used_ -= running.entry.cache_pages;
  if (running.layer < limits_.layers) {
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

bool Scheduler::Fits(const SchedulerEntry& entry) const {
  return rows_used_ + entry.rows <= limits_.max_batch &&
         pages_used_ + entry.cache_pages <= limits_.pool_pages &&
         workspace_used_ + entry.prompt_tokens <= limits_.workspace_tokens;
}

void Scheduler::Start(const SchedulerEntry& entry, StepPlan& plan) {
  rows_used_ += entry.rows;
  pages_used_ += entry.cache_pages;
  workspace_used_ += entry.prompt_tokens;
  plan.admit.push_back(entry.id);
  running_.push_back({.entry = entry});
}

// In the queue's order. One that does not fit may be passed by those behind it,
// of any priority, but only so often: then the queue stops at it, and what ends
// makes room for it alone.
void Scheduler::Admit(StepPlan& plan) {
  std::vector<Waiting*> passed;  // do not fit, and may be passed
  for (auto next = queue_.begin(); next != queue_.end();) {
    // Nobody fits: spares the way through a long queue.
    if (rows_used_ == limits_.max_batch) return;
    if (pages_used_ == limits_.pool_pages) return;
    Waiting& waiting = next->second;
    if (!Fits(waiting.entry)) {
      if (waiting.skips >= limits_.max_skips) return;
      passed.push_back(&waiting);
      ++next;
      continue;
    }
    Start(waiting.entry, plan);
    next = queue_.erase(next);
    for (Waiting* before : passed) ++before->skips;
    const bool all_may_wait = std::all_of(
        passed.begin(), passed.end(),
        [this](const Waiting* w) { return w->skips < limits_.max_skips; });
    if (!all_may_wait) return;
  }
}

// The prompt that is served first: the highest priority, then the earliest.
Scheduler::Running* Scheduler::NextPrompt() {
  Running* next = nullptr;
  for (Running& r : running_) {
    if (r.layer == limits_.layers) continue;
    if (next == nullptr || r.entry.priority > next->entry.priority) next = &r;
  }
  return next;
}

// Of the next row, in token-layers.
int64_t Scheduler::RowCost(const Running& prompt) const {
  const bool has_logits = prompt.layer + 1 == limits_.layers;
  return 1 + (has_logits ? prompt.entry.logit_row_cost : 0);
}

// All the rows left in the layer, or as many whole row tiles as there is work
// left for; 0: none. The first prompt of a step gets one tile whatever it
// costs, so that every step goes on.
int32_t Scheduler::LeadRows(const Running& lead,
                            int64_t work_left,
                            bool first) const {
  int64_t most =
      std::min<int64_t>(work_left / RowCost(lead), limits_.call_rows);
  if (first) most = std::max<int64_t>(most, kPromptRowTile);
  const int32_t left = lead.entry.prompt_tokens - lead.row;
  if (left <= most) return left;
  return static_cast<int32_t>(most / kPromptRowTile) * kPromptRowTile;
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

// The first prompt takes what it can; others at the same layer share the call
// if all that they have left in the layer fits, so that prompts which started
// together stay together.
void Scheduler::PlanPrefill(StepPlan& plan) {
  int64_t left = int64_t{limits_.slice_tokens} * limits_.layers;  // work
  while (Running* lead = NextPrompt()) {
    const int32_t lead_rows = LeadRows(*lead, left, plan.prefill.empty());
    if (lead_rows == 0) return;
    PrefillCall call{.layer = lead->layer, .pieces = {}};
    const int32_t layer = lead->layer;
    int64_t rows = 0;
    const auto take = [&](Running& prompt, int32_t count) {
      left -= count * RowCost(prompt);
      rows += count;
      TakeRows(prompt, count, call);
    };
    take(*lead, lead_rows);
    for (Running& other : running_) {
      if (&other == lead || other.layer != layer) continue;
      const int32_t all = other.entry.prompt_tokens - other.row;
      if (all > limits_.call_rows - rows || all * RowCost(other) > left) {
        continue;
      }
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
