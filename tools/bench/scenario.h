// Benchmarks that start their own servers, so that one command makes the whole
// comparison. Each prints Markdown for people, and returns JSON for programs.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "tools/bench/table.h"
#include "tools/bench/workload.h"
#include "tools/client_lib/client.h"
#include "tools/client_lib/interrupt.h"

namespace kf::tools {

struct ScenarioOptions {
  std::string server_binary;
  std::string model;  // empty: server_flags say what is served
  std::vector<std::string> server_flags;  // after the scenario's own
  // budget: the pools, in whole requests of FULL; requests for a steady state,
  // and to be answered from the first to the last. No tokens: leave it out.
  std::vector<uint32_t> pools = {4, 8, 16};
  PlannedRequest steady = {.prompt_tokens = 2048, .output_tokens = 512};
  PlannedRequest whole = {.prompt_tokens = 512, .output_tokens = 1024};
  // budget: how often both policies are measured in the steady state, in turn.
  uint32_t turns = 1;
  // budget: times all that the budget lets run at once; peers: of each engine.
  uint32_t rounds = 2;
  // stall: the streams, and the prompt that arrives among them.
  uint32_t streams = 8;
  PlannedRequest stream = {.prompt_tokens = 512, .output_tokens = 4096};
  uint32_t long_prompt = 6144;
  double settle_s = 2.0;  // from the last stream's first token until then
  std::vector<uint32_t> slices = {64, 256, 0};  // 0: the prompt in one slice
  // overload
  PlannedRequest small = {.prompt_tokens = 128, .output_tokens = 64};
  double overload = 3.0;  // times what the server can do
  // memory
  PlannedRequest large = {.prompt_tokens = 4096, .output_tokens = 512};
  uint32_t large_requests = 16;
  // peers: other engines, as name=command; all of the shapes x the streams.
  std::vector<std::string> peers;
  std::vector<PlannedRequest> peer_shapes = {{512, 128, {}}, {2048, 128, {}}};
  std::vector<uint32_t> peer_streams = {1, 8, 32};
  // Whole answers, for each of the streams; no tokens: leave it out.
  PlannedRequest peer_whole = {.prompt_tokens = 990, .output_tokens = 256};
  // growth: one request; share: so many at once; neighbour: the same shape for
  // each of peer_streams.
  PlannedRequest growth = {.prompt_tokens = 512, .output_tokens = 7680};
  PlannedRequest share = {.prompt_tokens = 512, .output_tokens = 256};
  uint32_t share_streams = 32;
  PlannedRequest neighbour = {.prompt_tokens = 512, .output_tokens = 256};
  // budget: of each steady state; overload: of 1x, and half of what follows.
  double seconds = 30.0;
  uint64_t seed = 1;
};

struct ScenarioReport {
  std::string markdown;
  nlohmann::json json;
};

// FULL against KEYFORMER at half of the prompt, in the same pool.
absl::StatusOr<ScenarioReport> RunBudget(const ScenarioOptions& options,
                                         Interrupt& interrupt);
// A long prompt arrives among running streams.
absl::StatusOr<ScenarioReport> RunStall(const ScenarioOptions& options,
                                        Interrupt& interrupt);
// More requests than the server can answer.
absl::StatusOr<ScenarioReport> RunOverload(const ScenarioOptions& options,
                                           Interrupt& interrupt);
// Long prompts, many at once: what the process takes.
absl::StatusOr<ScenarioReport> RunMemory(const ScenarioOptions& options,
                                         Interrupt& interrupt);

// The same work on this server and on other engines, in turn.
absl::StatusOr<ScenarioReport> RunPeers(const ScenarioOptions& options,
                                        Interrupt& interrupt);

// One long answer, under a budget and without.
absl::StatusOr<ScenarioReport> RunGrowth(const ScenarioOptions& options,
                                         Interrupt& interrupt);
// CPU time by thread.
absl::StatusOr<ScenarioReport> RunShare(const ScenarioOptions& options,
                                        Interrupt& interrupt);
// Beside a thread of this process that takes a core for itself.
absl::StatusOr<ScenarioReport> RunNeighbour(const ScenarioOptions& options,
                                            Interrupt& interrupt);

// --- What they share ---

pb::CacheOptions FullCache();
pb::CacheOptions HalfCache();  // KEYFORMER, half of the prompt
// The tokens that HalfCache keeps of a prompt.
uint32_t HalfBudget(const pb::ModelInfoResponse& info, uint32_t prompt_tokens);
// "2,048 + 512"
std::string ShapeText(const PlannedRequest& request);
// --model, --kv_pool_bytes and so on, then the caller's own.
std::vector<std::string> ServerFlags(const ScenarioOptions& options,
                                     std::vector<std::string> flags);
std::string Mebibytes(double bytes);  // "12.3"
void Say(const std::string& line);    // progress, on standard error

// How a pool is cut, as a server says that has been started to be asked.
struct PageSizes {
  double page_bytes = 0.0;  // a little above the truth
  uint32_t layers = 0;
  // Pages of one request that keeps `tokens` tokens in each layer.
  uint64_t Pages(uint32_t tokens) const;
  // A pool of so many.
  uint64_t PoolBytes(uint64_t pages) const;
};
absl::StatusOr<PageSizes> AskPageSizes(const ScenarioOptions& options,
                                       pb::ModelInfoResponse* info,
                                       Interrupt& interrupt);

}  // namespace kf::tools
