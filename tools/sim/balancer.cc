#include "tools/sim/balancer.h"

#include <algorithm>
#include <tuple>

namespace kf::sim {
namespace {

// Requests that wait, the share of the pool that all will use, their number.
std::tuple<int32_t, double, int32_t> Expected(const LoadView& load,
                                              int32_t sent) {
  const int32_t requests = load.running + load.waiting + sent;
  const double each = load.kv_usage_ratio / std::max(load.running, 1);
  return {load.waiting + sent, each * requests, requests};
}

}  // namespace

size_t Balancer::Choose(const std::vector<std::unique_ptr<Replica>>& replicas,
                        engine::TimePoint now) {
  const size_t first = turn_;
  turn_ = (turn_ + 1) % replicas.size();
  if (kind_ == Balancing::kRoundRobin) return first;
  if (known_.empty() || now - polled_ >= poll_) {
    known_.clear();
    for (const auto& replica : replicas) {
      known_.push_back({.load = replica->Load(now)});
    }
    polled_ = now;
  }
  size_t best = first;
  for (size_t i = 1; i < replicas.size(); ++i) {
    const size_t other = (first + i) % replicas.size();
    if (Expected(known_[other].load, known_[other].sent) <
        Expected(known_[best].load, known_[best].sent)) {
      best = other;
    }
  }
  ++known_[best].sent;
  return best;
}

}  // namespace kf::sim
