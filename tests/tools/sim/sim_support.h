// A model and a device with round numbers, so that a test can compute by hand.
#pragma once

#include <string>
#include <vector>

#include "tools/sim/sim_report.h"
#include "tools/sim/simulation.h"

namespace kf::sim {

// Parameters: 96 in each of 2 layers (q, k, v, o 4 x 4 and 4 x 2: 48; up and
// down 4 x 6: 48), 40 in each of embedding and output.
inline ModelSpec TinyModel() {
  return {.name = "tiny",
          .layers = 2,
          .hidden = 4,
          .ffn = 6,
          .ffn_matrices = 2,
          .query_heads = 2,
          .kv_heads = 1,
          .head_dim = 2,
          .vocabulary = 10,
          .context_tokens = 4096};
}

inline DeviceSpec TinyDevice() {
  return {.name = "device",
          .memory_bytes = 1e6,
          .memory_bytes_per_s = 1000.0,
          .tensor_flops_16 = 1e4,
          .tensor_flops_8 = 2e4,
          .vector_flops = 500.0,
          .efficiency = 0.5};
}

// On which a decode step of the tiny model takes some 10 ms, and a row of a
// prompt about 1 ms: for traces.
inline DeviceSpec QuickDevice() {
  DeviceSpec device = TinyDevice();
  device.memory_bytes_per_s = 2e5;
  device.tensor_flops_16 = 4e6;
  device.vector_flops = 4e6;
  return device;
}

inline SimulationOptions TinyOptions() {
  SimulationOptions options;
  options.replica.limits = {.pool_pages = 2 * 40,
                            .workspace_tokens = 4096,
                            .max_batch = 64,
                            .layers = 2,
                            .slice_tokens = 128,
                            .call_rows = 128};
  options.min_tokens = 1;  // the paper's, and all rows scored
  options.score_queries = 0;
  return options;
}

inline TraceRequest Asks(double arrival_s, int32_t prompt, int32_t output) {
  return {
      .arrival_s = arrival_s, .prompt_tokens = prompt, .output_tokens = output};
}

inline constexpr PolicySpec kFull{engine::CachePolicy::kFull, 0.5};
inline constexpr PolicySpec kHalf{engine::CachePolicy::kKeyformer, 0.5};

inline CostModel TinyCost() { return {TinyDevice(), TinyModel()}; }
inline CostModel QuickCost() { return {QuickDevice(), TinyModel()}; }

inline Statistics RunWith(const PolicySpec& policy,
                          const std::vector<TraceRequest>& trace,
                          SimulationOptions options = TinyOptions()) {
  options.policy = policy;
  return Simulate(QuickCost(), options, trace);
}

inline std::string Dump(const Statistics& statistics) {
  return RunJson({"", statistics}).dump();
}

// Time is kept in whole nanoseconds.
inline constexpr double kTick = 1e-8;

inline double PromptSeconds(int32_t rows, bool scored) {
  PromptWork work;
  work.Add(0, rows, scored ? 0 : rows);
  const CostModel cost = QuickCost();
  double seconds = cost.Seconds(cost.Prompt(work));
  work.logit_rows = 1;  // of the last layer of two
  return seconds + cost.Seconds(cost.Prompt(work));
}

inline double DecodeSeconds(int64_t read, int64_t scored) {
  const CostModel cost = QuickCost();
  return cost.Seconds(cost.Decode({.rows = 1,
                                   .read_tokens = read,
                                   .attended_tokens = read,
                                   .scored_tokens = scored}));
}

}  // namespace kf::sim
