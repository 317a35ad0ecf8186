// Decides what one step does: who is dropped, who is admitted, which rows of
// which prompts run, who decodes. Plain code over counts and a time passed in:
// no threads, tensors or sleeping.
//
// Work is counted in token-layers: one row through one layer.
//
// A request may have several sequences: they share the prompt's rows, and are a
// row of the batch each from then on.
//
// A request is queued, then in prefill, then decoding; Plan moves it on,
// assuming that the step succeeds, and Finish takes it out. A plan can be had
// in two halves, so that a device computes the first while the second is made.
//
// Most requests have all their pages from admission on. One that grows has
// those of its prompt, and takes more as its tokens come. When there are none,
// the growing request of the lowest priority, and among these the latest to
// have been admitted first, is preempted: it gives back all, and waits before
// those of its priority that have never run, since a client is in the middle of
// its answer. Admitted again, it is replayed: its prompt, then the tokens it
// had fed, up to where it was. The first of the growing ones is never preempted
// for another, so each of them ends in time.
//
// Thread-compatible.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <unordered_set>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "engine/cache/cache_plan.h"
#include "engine/clock.h"
#include "engine/request.h"

namespace kf::engine {

// All >= 1, but max_skips.
struct SchedulerLimits {
  int64_t pool_pages = 0;
  int64_t workspace_tokens = 0;  // sum of prompt tokens in prefill
  int32_t max_batch = 0;         // sequences of running requests
  int32_t layers = 0;
  int32_t slice_tokens = 0;  // prefill of a step: the work of this many times
                             // `layers` token-layers; >= kPromptRowTile
  int32_t call_rows = 0;     // rows of one prefill call; >= kPromptRowTile
  // Paced work (below) counts keys that a row attends to: so many cost as much
  // as all else of the row in a layer; 0: none does.
  int32_t context_of_a_row = 0;
  // How often a request that does not fit may be passed by others behind it;
  // then they wait until it fits. >= 0.
  int32_t max_skips = 0;
};

struct SchedulerEntry {
  RequestId id = 0;
  int32_t priority = 0;  // larger first
  int32_t prompt_tokens = 0;
  int32_t rows = 1;         // sequences; all are admitted together
  int64_t cache_pages = 0;  // of all of them, in all layers: from admission on,
                            // or at the end of one that grows
  std::optional<GrowthPlan> growth = std::nullopt;
  // What a row of the last layer costs beyond its token-layer, in token-layers:
  // > 0 where every prompt row's logits are wanted.
  int32_t logit_row_cost = 0;
  // The caller's: an error; the request's: an ordinary end.
  std::optional<TimePoint> deadline = std::nullopt;
  std::optional<TimePoint> time_limit = std::nullopt;
};

enum class DropReason : uint8_t { kCancelled, kDeadline, kTimeLimit };

struct PrefillPiece {
  RequestId id = 0;
  int32_t first_row = 0;
  int32_t rows = 0;
};
// Rows of several prompts through one layer, together.
struct PrefillCall {
  int32_t layer = 0;
  std::vector<PrefillPiece> pieces;
};

// The next tokens of a replay, after the step's prefill, through all layers.
struct ReplayPiece {
  RequestId id = 0;
  int32_t tokens = 0;  // of each sequence
};

struct StepPlan {
  void Clear();

  struct Drop {
    RequestId id = 0;
    DropReason reason = DropReason::kCancelled;
  };
  std::vector<Drop> drops;         // gone from the scheduler already
  std::vector<RequestId> preempt;  // in the queue again
  // After the room of the dropped and the preempted has been given back.
  std::vector<RequestId> admit;
  std::vector<RequestId> decode;
  std::vector<PrefillCall> prefill;  // in order
  std::vector<ReplayPiece> replay;   // in order
  int64_t prefill_token_layers = 0;  // replay included; without logits' cost
  int64_t paced_work = 0;            // of prefill, see PaceWork
};

class Scheduler {
 public:
  explicit Scheduler(const SchedulerLimits& limits) : limits_(limits) {}

  // Ids are new, and what never fits has been refused.
  void Add(const SchedulerEntry& entry);
  // The next Plan drops the request, in any state. Unknown ids are ignored.
  void Cancel(RequestId id) { cancelled_.insert(id); }
  StepPlan Plan(TimePoint now);
  // The same into `plan`, whose memory is used again.
  void Plan(TimePoint now, StepPlan& plan);
  // Its first half: drops, preempt and decode. Clears the rest.
  void PlanDecode(TimePoint now, StepPlan& plan);
  // Its second half: admit, prefill and replay. Nothing else of the scheduler
  // is called between the two: so both together are Plan, whatever the caller
  // has done with the first meanwhile.
  void PlanPrompts(StepPlan& plan);
  // From now on a plan in which somebody decodes takes no more prefill than
  // this, in token-layers and what attention and logits cost beside, nor more
  // than a slice; one row tile in any case. > 0.
  void PaceWork(int64_t work) { paced_work_ = work; }
  // A running request has given back some of its rows (one stays) and pages:
  // 0 of one that grows, whose pages go with the rows.
  void Shrink(RequestId id, int32_t rows, int64_t pages);
  // A running request has ended; its room is free.
  void Finish(RequestId id);

  bool idle() const { return queue_.empty() && running_.empty(); }
  // Requests in prefill or decoding.
  int32_t running() const { return static_cast<int32_t>(running_.size()); }

 private:
  // Higher priority first; then those that have run, in the order of their
  // first admission; then the others, in order of arrival.
  using QueueKey = std::pair<int64_t, uint64_t>;
  static constexpr uint64_t kFirstArrival = uint64_t{1} << 63;
  struct Waiting {
    SchedulerEntry entry;
    int32_t fed = 0;    // by decode steps, before it was preempted
    int32_t skips = 0;  // times that another one passed it
  };
  struct Running {
    QueueKey key;
    SchedulerEntry entry;
    int64_t pages = 0;     // that it has now
    int64_t room = 0;      // tokens of each sequence in them, if it grows
    int32_t layer = 0;     // of the next prompt row; == layers: none is left
    int32_t row = 0;       // of the prompt
    int32_t fed = 0;       // by decode steps, those of this plan included
    int32_t replayed = 0;  // of these
  };

  void DropEnded(TimePoint now, StepPlan& plan);
  void ExpectExpiry(const SchedulerEntry& entry);
  void Grow(StepPlan& plan);
  bool GrowOne(RequestId id, StepPlan& plan);
  void Preempt(std::vector<Running>::iterator victim, StepPlan& plan);
  void Admit(StepPlan& plan);
  void Enqueue(const QueueKey& key, const Waiting& waiting);
  void Forget(const Waiting& waiting);
  static int64_t Need(const Waiting& waiting);
  bool Fits(const Waiting& waiting, int64_t reserve) const;
  void Start(const QueueKey& key, const Waiting& waiting, StepPlan& plan);
  void PlanPrefill(StepPlan& plan);
  std::vector<Running>::iterator Find(RequestId id);
  std::vector<Running>::iterator LastGrowing();
  bool InPrompt(const Running& r) const { return r.layer < limits_.layers; }
  bool Decodes(const Running& r) const {
    return !InPrompt(r) && r.replayed == r.fed;
  }
  Running* NextUndone();
  // Work that a step may still take: token-layers with logits' cost, and paced
  // work.
  struct WorkLeft {
    int64_t slice;
    int64_t paced;
  };
  bool TakeReplay(Running& lead, WorkLeft& left, StepPlan& plan);
  int64_t SliceCost(const Running& prompt, int32_t rows) const;
  int64_t PacedCost(const Running& prompt, int32_t rows) const;
  bool FitsWork(const Running& prompt,
                int32_t rows,
                const WorkLeft& left) const;
  int32_t LeadRows(const Running& lead, const WorkLeft& left, bool first) const;
  void TakeRows(Running& prompt, int32_t rows, PrefillCall& call);
  void Release(const Running& running);
  std::optional<DropReason> WhyDrop(const SchedulerEntry& entry,
                                    TimePoint now) const;

  const SchedulerLimits limits_;
  std::map<QueueKey, Waiting> queue_;
  // Pages that each of them must find: a step must not ask all that wait when
  // there is room for none.
  std::multiset<int64_t> needs_;
  std::vector<Running> running_;  // in order of admission
  std::vector<Waiting*> passed_;  // scratch of Admit
  std::vector<std::pair<QueueKey, RequestId>> growing_;  // scratch of Grow
  std::unordered_set<RequestId> cancelled_;
  // No deadline or time limit is earlier: until then, nobody is asked.
  TimePoint next_expiry_ = TimePoint::max();
  uint64_t arrivals_ = kFirstArrival;
  uint64_t admissions_ = 0;  // first ones
  int64_t rows_used_ = 0;
  int64_t pages_used_ = 0;
  int64_t workspace_used_ = 0;
  int64_t paced_work_ = INT64_MAX;
};

// What may wait: a bound on requests and one on prompt tokens. The engine keeps
// it under its lock, since a full queue is told at once.
class QueueBound {
 public:
  QueueBound(int32_t max_requests, int64_t max_tokens)
      : max_requests_(max_requests), max_tokens_(max_tokens) {}

  // kResourceExhausted, with both numbers; then nothing has been added. A
  // prompt longer than max_tokens is taken when nothing waits.
  absl::Status Add(int32_t prompt_tokens);
  void Remove(int32_t requests, int64_t tokens);
  int32_t requests() const { return requests_; }
  int64_t tokens() const { return tokens_; }

 private:
  int32_t max_requests_;
  int64_t max_tokens_;
  int32_t requests_ = 0;
  int64_t tokens_ = 0;
};

}  // namespace kf::engine
