// What a simulation counts, and what is made of it.
#pragma once

#include <cstdint>
#include <vector>

#include "engine/clock.h"
#include "tools/client_lib/percentiles.h"

namespace kf::sim {

// Durations in buckets a hundredth apart, for lists too long to keep: a
// percentile is right within half a bucket, mean and maximum are exact.
class DurationHistogram {
 public:
  // `count` durations of `seconds` each, >= 0.
  void Add(double seconds, int64_t count = 1);
  tools::Summary Summarize() const;  // in seconds

 private:
  std::vector<int64_t> counts_;
  int64_t total_ = 0;
  double sum_ = 0.0;
  double max_ = 0.0;
  // Most rows of a step have waited the same time.
  double last_seconds_ = -1.0;
  size_t last_bucket_ = 0;
};

enum class Outcome : uint8_t {
  kFinished,
  kInvalid,    // the prompt fills the context
  kNeverFits,  // larger than the pool, the workspace or the batch
  kQueueFull,
  kDeadline,
};
inline constexpr int kOutcomes = 5;

// Of one simulation, all replicas together.
struct Statistics {
  int64_t requests = 0;  // the sum of `outcomes`, once all has ended
  int64_t outcomes[kOutcomes] = {};
  int64_t preemptions = 0;
  int64_t prompt_tokens = 0;  // of finished requests
  int64_t output_tokens = 0;
  engine::Duration makespan = {};  // from the first arrival to the last end

  std::vector<double> queue_s;
  std::vector<double> first_token_s;  // since arrival
  std::vector<double> request_s;      // of finished ones, since arrival
  DurationHistogram inter_token_s;

  // Of steps.
  int64_t steps = 0;
  int64_t decode_steps = 0;
  int64_t decode_rows = 0;  // summed over decode steps
  int64_t max_rows = 0;
  double decode_s = 0.0;
  double prefill_s = 0.0;  // replays included
  double replay_s = 0.0;   // of prefill_s: work that had been done before
  int64_t prefill_token_layers = 0;   // rows through a layer, replays included
  int64_t replayed_token_layers = 0;  // of these
  double page_seconds = 0.0;          // share of the pool in use, times time
  double max_pool_use = 0.0;          // 0 to 1

  int64_t count(Outcome outcome) const {
    return outcomes[static_cast<int>(outcome)];
  }
};

}  // namespace kf::sim
