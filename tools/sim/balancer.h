// Chooses a replica for each request, as a proxy in front of several servers
// would.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "engine/clock.h"
#include "tools/sim/replica.h"

namespace kf::sim {

enum class Balancing : uint8_t {
  kRoundRobin,
  // Asks every replica for its load (GetLoad) once in a while, and counts what
  // it has sent since then as waiting. Sends to the one where the fewest wait;
  // then where the least of the pool will be used, if those that wait need what
  // those that run do; then in turn.
  kLoad,
};

// Thread-compatible.
class Balancer {
 public:
  Balancer(Balancing kind, engine::Duration poll) : kind_(kind), poll_(poll) {}

  // Not empty. `now` does not go back.
  size_t Choose(const std::vector<std::unique_ptr<Replica>>& replicas,
                engine::TimePoint now);

 private:
  struct Known {
    LoadView load;
    int32_t sent = 0;  // since `load` was read
  };

  const Balancing kind_;
  const engine::Duration poll_;
  std::vector<Known> known_;
  engine::TimePoint polled_;
  size_t turn_ = 0;
};

}  // namespace kf::sim
