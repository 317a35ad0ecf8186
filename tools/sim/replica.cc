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
  arrived_.push_back(id);
  const CachePages pages = CountPages(job.sizes, options_.limits.layers);
  active_.emplace(id, Active{.job = std::move(job), .pages = pages});
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
                    .deadline = active.job.deadline,
                    .time_limit = std::nullopt});
  }
  arrived_.clear();
  const StepPlan plan = scheduler_.Plan(now);
  const bool works = !plan.decode.empty() || !plan.prefill.empty();
  // Else time would stand still.
  KF_CHECK(works || !plan.drops.empty() || scheduler_.idle());
  Drop(plan, now, ended);
  Admit(plan, now);
  at_step_start_ = {.running = scheduler_.running(),
                    .kv_usage_ratio = pool_use()};
  statistics_.max_pool_use = std::max(statistics_.max_pool_use, pool_use());
  const double use = pool_use();
  const TimePoint start = now;
  if (!plan.decode.empty()) Decode(plan, now, ended);
  for (const engine::PrefillCall& call : plan.prefill) {
    Prefill(call, now, ended);
  }
  if (works) ++statistics_.steps;
  statistics_.page_seconds += use * ToSeconds(now - start);
  ready_ = now;
}

void Replica::Drop(const StepPlan& plan,
                   TimePoint now,
                   std::vector<Ended>& ended) {
  for (const StepPlan::Drop& drop : plan.drops) {
    const auto found = active_.find(drop.id);
    const Active& active = found->second;
    if (!active.admitted) {
      bound_.Remove(1, active.job.sizes.prompt_tokens);
    } else {
      pages_used_ -= active.in_prompt ? active.pages.prompt : active.pages.kept;
    }
    ended.push_back({drop.id, now, Outcome::kDeadline});
    active_.erase(found);
  }
}

void Replica::Admit(const StepPlan& plan, TimePoint now) {
  for (const RequestId id : plan.admit) {
    Active& active = active_.at(id);
    active.admitted = true;
    bound_.Remove(1, active.job.sizes.prompt_tokens);
    pages_used_ += active.pages.prompt;
    statistics_.queue_s.push_back(ToSeconds(now - active.job.arrival));
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
    const engine::RequestSizes& sizes = active.job.sizes;
    // The prompt and all tokens but the last have been fed.
    const int32_t seen = sizes.prompt_tokens + active.generated - 1;
    const int32_t held = std::min(sizes.rules.size(0).budget, seen) + 1;
    const DecodeWork work = DecodeWorkOf(sizes, options_.limits.layers, held);
    all.rows += sizes.sequences;
    all.read_tokens += sizes.sequences * work.read_tokens;
    all.scored_tokens += sizes.sequences * work.scored_tokens;
    rows.push_back(&active);
  }
  statistics_.decode_s += Advance(now, cost_.Decode(all));
  ++statistics_.decode_steps;
  statistics_.decode_rows += all.rows;
  statistics_.max_rows = std::max(statistics_.max_rows, all.rows);
  for (Active* active : rows) TakeToken(*active, now, ended);
}

void Replica::Prefill(const engine::PrefillCall& call,
                      TimePoint& now,
                      std::vector<Ended>& ended) {
  PromptWork work;
  std::vector<Active*> done;
  for (const engine::PrefillPiece& piece : call.pieces) {
    Active& active = active_.at(piece.id);
    const engine::RequestSizes& sizes = active.job.sizes;
    work.Add(piece.first_row, piece.rows, sizes.rules.scored);
    const bool last_layer = call.layer + 1 == options_.limits.layers;
    if (last_layer && piece.first_row + piece.rows == sizes.prompt_tokens) {
      ++work.logit_rows;
      done.push_back(&active);
    }
  }
  statistics_.prefill_s += Advance(now, cost_.Prompt(work));
  for (Active* active : done) EndPrompt(*active, now, ended);
}

void Replica::EndPrompt(Active& active,
                        TimePoint now,
                        std::vector<Ended>& ended) {
  const int64_t returned = active.pages.prompt - active.pages.kept;
  scheduler_.Shrink(active.job.id, /*rows=*/0, returned);
  pages_used_ -= returned;
  active.in_prompt = false;
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
  pages_used_ -= active.pages.kept;
  statistics_.prompt_tokens += active.job.sizes.prompt_tokens;
  statistics_.output_tokens += active.generated;
  statistics_.request_s.push_back(ToSeconds(now - active.job.arrival));
  ended.push_back({id, now, Outcome::kFinished});
  active_.erase(id);
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
  load.waiting = bound_.requests();
  load.waiting_prompt_tokens = bound_.tokens();
  return load;
}

}  // namespace kf::sim
