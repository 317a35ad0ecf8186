// One simulated server: the engine's own Scheduler and QueueBound, with a cost
// model in place of the backend and a virtual clock in place of time. A step
// goes as EngineCore::Step does: plan, drop, preempt, admit, decode, prefill,
// replay; tokens are out when their part of the step has ended.
//
// Thread-compatible.
#pragma once

#include <cstdint>
#include <optional>
#include <unordered_map>
#include <vector>

#include "engine/cache/cache_plan.h"
#include "engine/clock.h"
#include "engine/request.h"
#include "engine/scheduler.h"
#include "tools/sim/cost_model.h"
#include "tools/sim/statistics.h"

namespace kf::sim {

struct ReplicaOptions {
  engine::SchedulerLimits limits;
  int32_t max_queue_requests = 1024;
  int64_t max_queue_tokens = 1 << 20;
};

// What a request asks for, fixed on arrival.
struct Job {
  engine::RequestId id = 0;  // unique in a simulation
  engine::RequestSizes sizes;
  int32_t priority = 0;
  std::optional<engine::TimePoint> deadline;
  engine::TimePoint arrival;
};

// The fields of GetLoadResponse that a balancer may go by.
struct LoadView {
  int32_t running = 0;
  int32_t waiting = 0;  // the preempted ones included
  int64_t waiting_prompt_tokens = 0;
  double kv_usage_ratio = 0.0;  // 0 to 1
};

class Replica {
 public:
  struct Ended {
    engine::RequestId id = 0;
    engine::TimePoint at;
    Outcome outcome = Outcome::kFinished;
  };

  // All outlive the replica.
  Replica(const ReplicaOptions& options,
          const CostModel& cost,
          Statistics& statistics);

  // kFinished: it waits now; else why it was refused.
  Outcome Submit(Job job);

  bool idle() const { return arrived_.empty() && scheduler_.idle(); }
  // When the next step may begin.
  engine::TimePoint ready() const { return ready_; }
  // Runs the step that begins at `now` >= ready(), and moves ready() to its
  // end. Appends what ends in it, in order of time.
  void Step(engine::TimePoint now, std::vector<Ended>& ended);

  // As a client sees it: within a step, what was reported at its beginning.
  LoadView Load(engine::TimePoint now) const;
  // Pages of the pool in use.
  int64_t pages_used() const { return pages_used_; }

 private:
  struct Active {
    Job job;
    engine::CachePages pages;
    std::optional<engine::GrowthPlan> growth;
    bool admitted = false;   // at least once
    bool preempted = false;  // waits to be admitted again
    int64_t pages_held = 0;
    int32_t fed = 0;        // by decode steps and replays: what its cache holds
    int32_t generated = 0;  // tokens of each sequence
    engine::TimePoint last_token = {};
    // Work on its cache as it is, and the most that there has been: what lies
    // between is to be done again. In token-layers of one sequence.
    int64_t done = 0;
    int64_t reached = 0;
  };

  Outcome Refusal(const Job& job) const;
  void Drop(const engine::StepPlan& plan,
            engine::TimePoint now,
            std::vector<Ended>& ended);
  void Preempt(const engine::StepPlan& plan);
  void Admit(const engine::StepPlan& plan, engine::TimePoint now);
  void Decode(const engine::StepPlan& plan,
              engine::TimePoint& now,
              std::vector<Ended>& ended);
  void Prefill(const engine::PrefillCall& call,
               engine::TimePoint& now,
               std::vector<Ended>& ended);
  void Replay(const engine::StepPlan& plan, engine::TimePoint& now);
  void EndPrompt(Active& active,
                 engine::TimePoint now,
                 std::vector<Ended>& ended);
  // Counts a token, and ends the request with its last one.
  void TakeToken(Active& active,
                 engine::TimePoint now,
                 std::vector<Ended>& ended);
  double Advance(engine::TimePoint& now, const Work& work);
  void LeaveQueue(Active& active);
  void HoldPages(Active& active, int64_t pages);
  // Has room for `tokens` tokens more, if it grows.
  void GrowBy(Active& active, int32_t tokens);
  DecodeWork FeedNext(Active& active);
  int64_t CountDone(Active& active, int64_t token_layers);
  double pool_use() const;

  const ReplicaOptions options_;
  const CostModel& cost_;
  Statistics& statistics_;
  engine::Scheduler scheduler_;
  engine::QueueBound bound_;
  std::vector<engine::RequestId> arrived_;  // since the last step
  std::unordered_map<engine::RequestId, Active> active_;
  int64_t pages_used_ = 0;
  int32_t preempted_ = 0;         // requests that wait for their replay
  int64_t preempted_tokens_ = 0;  // their prompts
  engine::TimePoint ready_;
  LoadView at_step_start_;
};

}  // namespace kf::sim
