// Replays a trace against one server or several, in virtual time.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "tools/sim/balancer.h"
#include "tools/sim/cost_model.h"
#include "tools/sim/policy_spec.h"
#include "tools/sim/replica.h"
#include "tools/sim/statistics.h"
#include "tools/sim/trace.h"

namespace kf::sim {

// How the memory of a device is shared out.
struct MemoryOptions {
  double memory_share = 0.9;   // of the device, that the server may take
  double kv_pool_bytes = 0.0;  // 0: what weights and workspace leave
  int32_t workspace_tokens = 16384;
};

struct SimulationOptions {
  ReplicaOptions replica;
  int32_t replicas = 1;
  Balancing balancing = Balancing::kLoad;
  engine::Duration poll = std::chrono::milliseconds(100);
  PolicySpec policy;             // of requests that name none
  uint32_t min_tokens = 256;     // least budget
  uint32_t score_queries = 256;  // last prompt rows that are scored; 0: all
  int32_t beams = 1;             // width of every request's beam search
  double deadline_s = 0.0;       // after arrival; 0: none
  // > 0: so many clients, each sending its next request when its last one has
  // ended; arrival times are not read.
  int32_t clients = 0;
};

// Pages of the pool. kInvalidArgument, with the numbers, if the weights do not
// fit the device or not a page a layer is left.
absl::StatusOr<int64_t> PlanPool(const DeviceSpec& device,
                                 const CostModel& cost,
                                 const MemoryOptions& options);

// n, T and what the cache holds, as the server fixes them on arrival; nothing
// if the prompt fills the context.
std::optional<engine::RequestSizes> SizesOf(const TraceRequest& request,
                                            const ModelSpec& model,
                                            const SimulationOptions& options);

// The same input gives the same output, bit for bit.
Statistics Simulate(const CostModel& cost,
                    const SimulationOptions& options,
                    const std::vector<TraceRequest>& trace);

}  // namespace kf::sim
