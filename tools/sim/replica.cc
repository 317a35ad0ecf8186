#include "tools/sim/replica.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "kernels/core/status.h"

namespace kf::sim {

using engine::CachePages;
using engine::RequestId;
using engine::StepPlan;
using engine::TimePoint;
using engine::ToSeconds;

Replica::Replica(const ReplicaOptions& options,
                 const CostModel& cost,
                 Statistics& statistics)
    : options_(options),
      cost_(cost),
      statistics_(statistics),
      scheduler_(options.limits),
      bound_(options.max_queue_requests, options.max_queue_tokens) {}

// In the order of Engine::Submit.
Outcome Replica::Refusal(const Job& job) const {
  const engine::SchedulerLimits& limits = options_.limits;
  const bool fits =
      CheckFitsBatch(job.sizes, limits.max_batch).ok() &&
      CheckFitsPool(job.sizes, limits.layers, limits.pool_pages).ok() &&
      CheckFitsWorkspace(job.sizes, limits.workspace_tokens).ok();
  return fits ? Outcome::kFinished : Outcome::kNeverFits;
}

Outcome Replica::Submit(Job job) {
  const Outcome refusal = Refusal(job);
  if (refusal != Outcome::kFinished) return refusal;
  if (!bound_.Add(job.sizes.prompt_tokens).ok()) return Outcome::kQueueFull;
  const RequestId id = job.id;
  const int32_t layers = options_.limits.layers;
  arrived_.push_back(id);
  const CachePages pages = CountPages(job.sizes, layers);
  const auto growth = GrowthOf(job.sizes, layers);
  // Of several sequences that grow, each would have a length of its own.
  KF_CHECK(!growth || job.sizes.sequences == 1);
  active_.emplace(
      id, Active{.job = std::move(job), .pages = pages, .growth = growth});
  return Outcome::kFinished;
}

void Replica::Step(TimePoint now, std::vector<Ended>& ended) {
  KF_CHECK(now >= ready_);
  for (const RequestId id : arrived_) {
    const Active& active = active_.at(id);
    const engine::RequestSizes& sizes = active.job.sizes;
    scheduler_.Add({.id = id,
                    .priority = active.job.priority,
                    .prompt_tokens = sizes.prompt_tokens,
                    .rows = sizes.sequences,
                    .cache_pages = active.pages.prompt,
                    .growth = active.growth,
                    .deadline = active.job.deadline,
                    .time_limit = std::nullopt});
  }
  arrived_.clear();
  const StepPlan plan = scheduler_.Plan(now);
  const bool works =
      !plan.decode.empty() || !plan.prefill.empty() || !plan.replay.empty();
  // Else time would stand still.
  KF_CHECK(works || !plan.drops.empty() || scheduler_.idle());
  Drop(plan, now, ended);
  Preempt(plan);
  Admit(plan, now);
  at_step_start_ = {.running = scheduler_.running(),
                    .kv_usage_ratio = pool_use()};
  const double use = pool_use();
  const TimePoint start = now;
  if (!plan.decode.empty()) Decode(plan, now, ended);
  for (const engine::PrefillCall& call : plan.prefill) {
    Prefill(call, now, ended);
  }
  Replay(plan, now);
  if (works) ++statistics_.steps;
  statistics_.prefill_token_layers += plan.prefill_token_layers;
  statistics_.page_seconds += use * ToSeconds(now - start);
  ready_ = now;
}

void Replica::Drop(const StepPlan& plan,
                   TimePoint now,
                   std::vector<Ended>& ended) {
  for (const StepPlan::Drop& drop : plan.drops) {
    const auto found = active_.find(drop.id);
    LeaveQueue(found->second);
    HoldPages(found->second, 0);
    ended.push_back({drop.id, now, Outcome::kDeadline});
    active_.erase(found);
  }
}

void Replica::Preempt(const StepPlan& plan) {
  for (const RequestId id : plan.preempt) {
    Active& active = active_.at(id);
    HoldPages(active, 0);
    active.fed = 0;
    active.done = 0;
    active.preempted = true;
    ++preempted_;
    preempted_tokens_ += active.job.sizes.prompt_tokens;
    ++statistics_.preemptions;
  }
}

void Replica::Admit(const StepPlan& plan, TimePoint now) {
  for (const RequestId id : plan.admit) {
    Active& active = active_.at(id);
    LeaveQueue(active);
    if (active.growth) {
      GrowBy(active, 1);
    } else {
      HoldPages(active, active.pages.prompt);
    }
    if (active.admitted) continue;
    active.admitted = true;
    statistics_.queue_s.push_back(ToSeconds(now - active.job.arrival));
  }
}

// No more waiting, if it was.
void Replica::LeaveQueue(Active& active) {
  const int32_t tokens = active.job.sizes.prompt_tokens;
  if (!active.admitted) {
    bound_.Remove(1, tokens);
  } else if (active.preempted) {
    active.preempted = false;
    --preempted_;
    preempted_tokens_ -= tokens;
  }
}

void Replica::Decode(const StepPlan& plan,
                     TimePoint& now,
                     std::vector<Ended>& ended) {
  DecodeWork all;
  std::vector<Active*> rows;
  rows.reserve(plan.decode.size());
  for (const RequestId id : plan.decode) {
    Active& active = active_.at(id);
    GrowBy(active, 1);
    all += FeedNext(active);
    CountDone(active, options_.limits.layers);
    rows.push_back(&active);
  }
  statistics_.decode_s += Advance(now, cost_.Decode(all));
  ++statistics_.decode_steps;
  statistics_.decode_rows += all.rows;
  statistics_.max_rows = std::max(statistics_.max_rows, all.rows);
  for (Active* active : rows) TakeToken(*active, now, ended);
}

// What feeding each sequence its next token comes to.
DecodeWork Replica::FeedNext(Active& active) {
  const engine::RequestSizes& sizes = active.job.sizes;
  const int32_t seen = sizes.prompt_tokens + active.fed;
  const int32_t held = std::min(sizes.rules.size(0).budget, seen) + 1;
  ++active.fed;
  const DecodeWork one = DecodeWorkOf(sizes, options_.limits.layers, held);
  return {.rows = sizes.sequences,
          .read_tokens = sizes.sequences * one.read_tokens,
          .attended_tokens = sizes.sequences * one.attended_tokens,
          .scored_tokens = sizes.sequences * one.scored_tokens};
}

void Replica::Prefill(const engine::PrefillCall& call,
                      TimePoint& now,
                      std::vector<Ended>& ended) {
  PromptWork work;
  int64_t again = 0;
  std::vector<Active*> done;
  for (const engine::PrefillPiece& piece : call.pieces) {
    Active& active = active_.at(piece.id);
    const engine::RequestSizes& sizes = active.job.sizes;
    const int32_t n = sizes.prompt_tokens;
    work.Add(piece.first_row, piece.rows,
             sizes.rules.scored ? n - sizes.rules.prompt_rows : n);
    again += CountDone(active, piece.rows);
    const bool last_layer = call.layer + 1 == options_.limits.layers;
    if (last_layer && piece.first_row + piece.rows == n) {
      ++work.logit_rows;
      done.push_back(&active);
    }
  }
  const double seconds = Advance(now, cost_.Prompt(work));
  statistics_.prefill_s += seconds;
  statistics_.replay_s +=
      seconds * static_cast<double>(again) / static_cast<double>(work.rows);
  for (Active* active : done) EndPrompt(*active, now, ended);
}

void Replica::Replay(const StepPlan& plan, TimePoint& now) {
  for (const engine::ReplayPiece& piece : plan.replay) {
    Active& active = active_.at(piece.id);
    GrowBy(active, piece.tokens);
    DecodeWork work;
    for (int32_t i = 0; i < piece.tokens; ++i) work += FeedNext(active);
    // The rows are of one sequence: what one of them has read, the others find
    // in the device's cache.
    const int64_t layers = options_.limits.layers;
    const int64_t held = active.job.sizes.prompt_tokens + active.fed;
    work.read_tokens = std::min(work.read_tokens, layers * held);
    CountDone(active, layers * piece.tokens);
    const double seconds = Advance(now, cost_.Replay(work));
    statistics_.prefill_s += seconds;
    statistics_.replay_s += seconds;
  }
}

void Replica::EndPrompt(Active& active,
                        TimePoint now,
                        std::vector<Ended>& ended) {
  if (!active.growth) {
    scheduler_.Shrink(active.job.id, /*rows=*/0,
                      active.pages.prompt - active.pages.kept);
    HoldPages(active, active.pages.kept);
  }
  if (active.generated > 0) return;  // a replay: it has been told
  statistics_.first_token_s.push_back(ToSeconds(now - active.job.arrival));
  TakeToken(active, now, ended);
}

void Replica::TakeToken(Active& active,
                        TimePoint now,
                        std::vector<Ended>& ended) {
  if (active.generated > 0) {
    statistics_.inter_token_s.Add(ToSeconds(now - active.last_token));
  }
  active.last_token = now;
  if (++active.generated < active.job.sizes.max_new_tokens) return;
  const RequestId id = active.job.id;
  scheduler_.Finish(id);
  HoldPages(active, 0);
  statistics_.prompt_tokens += active.job.sizes.prompt_tokens;
  statistics_.output_tokens += active.generated;
  statistics_.request_s.push_back(ToSeconds(now - active.job.arrival));
  ended.push_back({id, now, Outcome::kFinished});
  active_.erase(id);
}

void Replica::HoldPages(Active& active, int64_t pages) {
  pages_used_ += pages - active.pages_held;
  active.pages_held = pages;
  KF_CHECK(pages_used_ >= 0 && pages_used_ <= options_.limits.pool_pages);
  statistics_.max_pool_use = std::max(statistics_.max_pool_use, pool_use());
}

void Replica::GrowBy(Active& active, int32_t tokens) {
  if (!active.growth) return;
  const int64_t seen = int64_t{active.job.sizes.prompt_tokens} + active.fed;
  HoldPages(active, active.growth->Pages(/*rows=*/1, seen + tokens));
}

// Of `token_layers` of work on its cache; returns how many had been done before
// it was preempted.
int64_t Replica::CountDone(Active& active, int64_t token_layers) {
  const int64_t again = std::min(active.reached - active.done, token_layers);
  active.done += token_layers;
  active.reached = std::max(active.reached, active.done);
  statistics_.replayed_token_layers += again;
  return again;
}

// Whole nanoseconds, at least one: no sum of them is rounded, and time always
// goes on; but the clock stops 250 years out, for devices of any slowness.
double Replica::Advance(TimePoint& now, const Work& work) {
  constexpr double kEndOfTime = 8e18;
  const double seconds = cost_.Seconds(work);
  const auto elapsed = static_cast<double>(now.time_since_epoch().count());
  const double left = std::max(kEndOfTime - elapsed, 0.0);
  now += engine::Duration(static_cast<int64_t>(
      std::min(std::max(std::round(seconds * 1e9), 1.0), left)));
  return seconds;
}

double Replica::pool_use() const {
  return static_cast<double>(pages_used_) /
         static_cast<double>(options_.limits.pool_pages);
}

LoadView Replica::Load(TimePoint now) const {
  LoadView load = at_step_start_;
  if (now >= ready_) {
    load.running = scheduler_.running();
    load.kv_usage_ratio = pool_use();
  }
  // Counted on arrival, not by the step.
  load.waiting = bound_.requests() + preempted_;
  load.waiting_prompt_tokens = bound_.tokens() + preempted_tokens_;
  return load;
}

}  // namespace kf::sim
