#include "tools/sim/simulation.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <memory>
#include <queue>
#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/cache/request_sizes.h"
#include "engine/sequence_rules.h"
#include "kernels/core/status.h"

namespace kf::sim {
namespace {

using engine::Duration;
using engine::RequestId;
using engine::RequestSizes;
using engine::TimePoint;

Duration FromSeconds(double seconds) {
  return Duration(std::llround(seconds * 1e9));
}

// Runs one simulation: the next event is an arrival or the step of a replica,
// whichever is earlier; at the same time arrivals come first, then the replica
// with the lower number.
class Loop {
 public:
  Loop(const CostModel& cost,
       const SimulationOptions& options,
       const std::vector<TraceRequest>& trace)
      : cost_(cost),
        options_(options),
        trace_(trace),
        balancer_(options.balancing, options.poll) {
    for (int32_t i = 0; i < options.replicas; ++i) {
      replicas_.push_back(
          std::make_unique<Replica>(options.replica, cost, statistics_));
    }
  }

  Statistics Run() {
    const size_t at_once =
        options_.clients > 0 ? static_cast<size_t>(options_.clients) : 1;
    for (size_t i = 0; i < at_once; ++i) ScheduleNext({});
    if (!arrivals_.empty()) first_ = arrivals_.top().at;
    last_ = first_;
    for (;;) {
      Replica* const replica = NextReplica();
      if (!arrivals_.empty() &&
          (replica == nullptr || arrivals_.top().at <= StartOf(*replica))) {
        Arrive();
      } else if (replica != nullptr) {
        StepOf(*replica);
      } else {
        break;
      }
    }
    statistics_.makespan = last_ - first_;
    return std::move(statistics_);
  }

 private:
  struct Arrival {
    TimePoint at;
    size_t index = 0;  // in the trace
    bool operator>(const Arrival& other) const {
      return std::pair(at, index) > std::pair(other.at, other.index);
    }
  };

  // The trace's next request, at its own time, or at `now` if a client sends
  // it.
  void ScheduleNext(TimePoint now) {
    if (next_ == trace_.size()) return;
    const TimePoint at = options_.clients > 0
                             ? now
                             : TimePoint(FromSeconds(trace_[next_].arrival_s));
    arrivals_.push({at, next_++});
  }

  TimePoint StartOf(const Replica& replica) const {
    return std::max(replica.ready(), now_);
  }

  Replica* NextReplica() const {
    Replica* next = nullptr;
    for (const auto& replica : replicas_) {
      if (replica->idle()) continue;
      if (next == nullptr || StartOf(*replica) < StartOf(*next)) {
        next = replica.get();
      }
    }
    return next;
  }

  void Arrive() {
    const Arrival arrival = arrivals_.top();
    arrivals_.pop();
    now_ = std::max(now_, arrival.at);
    const TraceRequest& request = trace_[arrival.index];
    ++statistics_.requests;
    Outcome outcome = Outcome::kInvalid;
    if (auto sizes = SizesOf(request, cost_.model(), options_)) {
      Job job{.id = arrival.index + 1,
              .sizes = *std::move(sizes),
              .priority = request.priority,
              .deadline = std::nullopt,
              .arrival = arrival.at};
      if (options_.deadline_s > 0.0) {
        job.deadline = arrival.at + FromSeconds(options_.deadline_s);
      }
      outcome =
          replicas_[balancer_.Choose(replicas_, now_)]->Submit(std::move(job));
    }
    if (options_.clients == 0) ScheduleNext(arrival.at);
    if (outcome != Outcome::kFinished) End(arrival.at, outcome);
  }

  void StepOf(Replica& replica) {
    now_ = StartOf(replica);
    ended_.clear();
    replica.Step(now_, ended_);
    for (const Replica::Ended& ended : ended_) End(ended.at, ended.outcome);
  }

  void End(TimePoint at, Outcome outcome) {
    ++statistics_.outcomes[static_cast<int>(outcome)];
    last_ = std::max(last_, at);
    if (options_.clients > 0) ScheduleNext(at);
  }

  const CostModel& cost_;
  const SimulationOptions& options_;
  const std::vector<TraceRequest>& trace_;
  Balancer balancer_;
  Statistics statistics_;
  std::vector<std::unique_ptr<Replica>> replicas_;
  std::priority_queue<Arrival, std::vector<Arrival>, std::greater<>> arrivals_;
  std::vector<Replica::Ended> ended_;
  size_t next_ = 0;
  TimePoint now_;
  TimePoint first_;
  TimePoint last_;
};

}  // namespace

absl::StatusOr<int64_t> PlanPool(const DeviceSpec& device,
                                 const CostModel& cost,
                                 const MemoryOptions& options) {
  double bytes = options.kv_pool_bytes;
  if (bytes == 0.0) {
    const double share = options.memory_share * device.memory_bytes;
    const double workspace = cost.workspace_bytes() * options.workspace_tokens;
    bytes = share - cost.weight_bytes() - workspace;
    if (bytes <= 0.0) {
      return absl::InvalidArgumentError(absl::StrCat(
          "model ", cost.model().name, ": weights of ", cost.weight_bytes(),
          " bytes and a workspace of ", workspace, ", but memory_share of ",
          device.name, " is ", share));
    }
  }
  const double pages = std::floor(bytes / cost.page_bytes());
  if (pages < cost.model().layers) {
    return absl::InvalidArgumentError(absl::StrCat(
        "kv_pool_bytes: ", bytes, ", want at least ",
        cost.page_bytes() * cost.model().layers, " (one page of ", kPageTokens,
        " tokens in each of ", cost.model().layers, " layers)"));
  }
  // As many as the engine's page numbers go to.
  return static_cast<int64_t>(
      std::min<double>(pages, std::numeric_limits<int32_t>::max()));
}

std::optional<RequestSizes> SizesOf(const TraceRequest& request,
                                    const ModelSpec& model,
                                    const SimulationOptions& options) {
  if (request.prompt_tokens >= model.context_tokens) return std::nullopt;
  const PolicySpec& policy = request.policy ? *request.policy : options.policy;
  engine::Request asked;
  asked.cache.policy = policy.policy;
  asked.cache.ratio = policy.ratio;
  asked.cache.min_tokens = options.min_tokens;
  asked.cache.score_queries = options.score_queries;
  if (options.beams > 1) {
    asked.beam.emplace().width = static_cast<uint32_t>(options.beams);
  }
  RequestSizes sizes;
  sizes.prompt_tokens = request.prompt_tokens;
  sizes.max_new_tokens = std::min(request.output_tokens,
                                  model.context_tokens - request.prompt_tokens);
  // It refuses fields that are not set here.
  KF_CHECK(FixCacheSizes(asked, model.layers, sizes).ok());
  FixSequences(asked, sizes);
  return sizes;
}

Statistics Simulate(const CostModel& cost,
                    const SimulationOptions& options,
                    const std::vector<TraceRequest>& trace) {
  return Loop(cost, options, trace).Run();
}

}  // namespace kf::sim
