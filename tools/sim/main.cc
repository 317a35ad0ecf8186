// keyformer-sim: the server's scheduler on machines that are not here.
#include <spdlog/fmt/fmt.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <fstream>
#include <string>
#include <utility>
#include <vector>

#include "engine/model/decoder.h"
#include "kernels/backend.h"
#include "kernels/core/status.h"
#include "tools/client_lib/exit_code.h"
#include "tools/client_lib/text_input.h"
#include "tools/sim/sim_report.h"
#include "tools/sim/simulation.h"

namespace kf::sim {
namespace {

using tools::ExitCode;

constexpr char kExamples[] = R"(Examples:
  keyformer-sim --device a100-80gb --model mpt-7b --concurrency 64 \
      --prompt_tokens 1024 --output_tokens 1024 --requests 512
  keyformer-sim --device h200 --model llama-8b --rate 40 --requests 100000 \
      --prompt_tokens 600 --output_tokens 200 --spread 0.8 --replicas 8
  keyformer-sim --requests 100000 --rate 40 --spread 0.8 --write_trace day.csv
  keyformer-sim --trace day.csv --policies full,keyformer:0.5 --json out.json

Each policy replays the same requests. A trace is CSV with a header line:
  arrival_s,prompt_tokens,output_tokens[,policy,ratio,priority]
What is counted and what is not: docs/scaling.md.

Exit codes: 0 done, 1 a file cannot be read or written, 2 wrong usage.)";

struct SimFlags {
  std::string device = "a100-80gb";
  std::string model = "mpt-7b";
  double efficiency = 0.0;
  std::string trace;
  std::string write_trace;
  std::string policies = "full,h2o:0.9,keyformer:0.5";
  std::string balancer = "load";
  std::string json;
  size_t requests = 1000;
  int32_t prompt_tokens = 1024;
  int32_t output_tokens = 1024;
  double spread = 0.0;
  double rate = 0.0;
  int32_t concurrency = 0;
  uint64_t seed = 1;
  int32_t replicas = 1;
  double poll_ms = 100.0;
  MemoryOptions memory;
  uint32_t min_tokens = 256;
  uint32_t score_queries = 256;
  int32_t beams = 1;
  double deadline_s = 0.0;
  int32_t max_batch = 512;
  int32_t slice_tokens = 2048;
  int32_t max_queue_requests = 1 << 20;
  int64_t max_queue_tokens = int64_t{1} << 40;
  int32_t max_skips = 16;
};

// CLI::Range lets NaN through.
CLI::Validator Between(double low, double high) {
  return CLI::Validator(
      [low, high](const std::string& text) -> std::string {
        const auto number = ParseNumber(text);
        if (number.ok() && *number >= low && *number <= high) return "";
        return fmt::format("{}, want a number from {} to {}", text, low, high);
      },
      fmt::format("[{} - {}]", low, high));
}

void AddSimFlags(CLI::App& app, SimFlags& f) {
  const auto add = [&app](const std::string& group, const std::string& name,
                          auto& value, const std::string& help,
                          const CLI::Validator& check) {
    return app.add_option(name, value, help)
        ->check(check)
        ->capture_default_str()
        ->group(group);
  };
  const CLI::Validator any = CLI::Validator("");
  const CLI::Range tokens(1, 1 << 24);
  const CLI::Validator seconds = Between(0.0, 1e9);
  add("Machine", "--device", f.device, "a100-80gb, h200, or a .json file", any);
  add("Machine", "--model", f.model,
      "mpt-7b, llama-8b, llama-8b-fp8, smollm2-135m, or a .json file", any);
  add("Machine", "--efficiency", f.efficiency,
      "Instead of the device's; 0: the device's", Between(0.0, 1.0));
  add("Machine", "--memory_share", f.memory.memory_share,
      "Of the device's memory, for the server", Between(0.01, 1.0));
  add("Machine", "--kv_pool_bytes", f.memory.kv_pool_bytes,
      "0: what weights and workspace leave", Between(0.0, 1e15));
  add("Machine", "--replicas", f.replicas, "Servers behind a balancer",
      CLI::Range(1, 1024));
  add("Machine", "--balancer", f.balancer, "load or round_robin",
      CLI::IsMember({"load", "round_robin"}));
  add("Machine", "--poll_ms", f.poll_ms, "Age at which it asks for loads again",
      Between(0.0, 1e6));
  add("Load", "--trace", f.trace, "Requests from a CSV file; - is stdin", any);
  add("Load", "--requests", f.requests, "Or: draw so many",
      CLI::Range(1, 1 << 24));
  add("Load", "--prompt_tokens", f.prompt_tokens, "Median of a prompt", tokens);
  add("Load", "--output_tokens", f.output_tokens, "Median of an answer",
      tokens);
  add("Load", "--spread", f.spread,
      "Of lengths: sigma of their logarithm; 0: all the same",
      Between(0.0, 4.0));
  CLI::Option* const rate = add(
      "Load", "--rate", f.rate,
      "Poisson arrivals, requests a second; 0: all at once", Between(0.0, 1e6));
  add("Load", "--concurrency", f.concurrency,
      "So many clients, each sending its next request after its last",
      CLI::Range(1, 1 << 24))
      ->excludes(rate);
  add("Load", "--seed", f.seed, "Of lengths and arrivals",
      CLI::NonNegativeNumber);
  add("Load", "--deadline", f.deadline_s, "Of a request; 0: none", seconds);
  add("Load", "--write_trace", f.write_trace,
      "Write the requests to this file and stop", any);
  add("Cache", "--policies", f.policies,
      "NAME or NAME:RATIO: full, window, h2o, keyformer, quest", any);
  add("Cache", "--min_tokens", f.min_tokens, "Least budget", tokens);
  add("Cache", "--score_queries", f.score_queries,
      "Last prompt rows that are scored; 0: all", CLI::Range(0, 1 << 24));
  add("Cache", "--beams", f.beams, "Width of every request's beam search",
      CLI::Range(1, 1024));
  add("Scheduler", "--max_batch", f.max_batch, "Sequences running at once",
      CLI::Range(1, 4096));
  add("Scheduler", "--prefill_slice_tokens", f.slice_tokens,
      "Prefill of one step", CLI::Range(kPromptRowTile, 1 << 20));
  add("Scheduler", "--prefill_workspace_tokens", f.memory.workspace_tokens,
      "Prompts in prefill", CLI::Range(1, 1 << 24));
  add("Scheduler", "--max_queue_requests", f.max_queue_requests,
      "Requests waiting", CLI::Range(1, 1 << 24));
  add("Scheduler", "--max_queue_tokens", f.max_queue_tokens,
      "Their prompt tokens", CLI::PositiveNumber);
  add("Scheduler", "--max_skips", f.max_skips,
      "How often others may pass a request that does not fit",
      CLI::Range(0, 1 << 20));
  app.add_option("--json", f.json, "Also write the result to this file");
}

ExitCode Refuse(const absl::Status& status) {
  const std::string message(status.message());
  std::fprintf(stderr, "keyformer-sim: %s\n", message.c_str());
  return absl::IsInvalidArgument(status) ? tools::kExitUsage
                                         : tools::kExitError;
}

absl::Status WriteFile(const std::string& path, const std::string& text) {
  std::ofstream file(path);
  file << text;
  file.close();
  if (!file.fail()) return absl::OkStatus();
  return absl::UnavailableError(absl::StrCat(path, ": cannot write"));
}

absl::StatusOr<std::vector<TraceRequest>> ReadOrDraw(const SimFlags& f,
                                                     int32_t context_tokens) {
  if (!f.trace.empty()) {
    KF_ASSIGN_OR_RETURN(const std::string text, tools::ReadText(f.trace));
    return ParseTrace(text);
  }
  return DrawTrace({.requests = f.requests,
                    .rate = f.rate,
                    .prompt_tokens = f.prompt_tokens,
                    .output_tokens = f.output_tokens,
                    .spread = f.spread,
                    .max_tokens = context_tokens,
                    .seed = f.seed});
}

nlohmann::json ConfigOf(const SimFlags& f,
                        const DeviceSpec& device,
                        const SimulationOptions& options) {
  return {{"device", device.name},
          {"model", f.model},
          {"efficiency", device.efficiency},
          {"pool_pages", options.replica.limits.pool_pages},
          {"max_batch", f.max_batch},
          {"max_skips", f.max_skips},
          {"prefill_slice_tokens", f.slice_tokens},
          {"prefill_workspace_tokens", f.memory.workspace_tokens},
          {"replicas", f.replicas},
          {"balancer", f.balancer},
          {"concurrency", f.concurrency},
          {"beams", f.beams},
          {"min_tokens", f.min_tokens},
          {"score_queries", f.score_queries},
          {"seed", f.seed}};
}

absl::Status RunAll(const SimFlags& f) {
  KF_ASSIGN_OR_RETURN(DeviceSpec device, FindDevice(f.device));
  KF_ASSIGN_OR_RETURN(const ModelSpec model, FindModel(f.model));
  KF_ASSIGN_OR_RETURN(const auto policies, ParsePolicies(f.policies));
  KF_ASSIGN_OR_RETURN(const auto trace, ReadOrDraw(f, model.context_tokens));
  if (!f.write_trace.empty()) {
    return WriteFile(f.write_trace, FormatTrace(trace));
  }
  if (f.efficiency > 0.0) device.efficiency = f.efficiency;
  const CostModel cost(device, model);
  KF_ASSIGN_OR_RETURN(const int64_t pages, PlanPool(device, cost, f.memory));
  SimulationOptions options{
      .replica = {.limits = {.pool_pages = pages,
                             .workspace_tokens = f.memory.workspace_tokens,
                             .max_batch = f.max_batch,
                             .layers = model.layers,
                             .slice_tokens = f.slice_tokens,
                             .call_rows = engine::kPromptCallRows,
                             .max_skips = f.max_skips},
                  .max_queue_requests = f.max_queue_requests,
                  .max_queue_tokens = f.max_queue_tokens},
      .replicas = f.replicas,
      .balancing =
          f.balancer == "load" ? Balancing::kLoad : Balancing::kRoundRobin,
      .poll = engine::Duration(static_cast<int64_t>(f.poll_ms * 1e6)),
      .policy = {},
      .min_tokens = f.min_tokens,
      .score_queries = f.score_queries,
      .beams = f.beams,
      .deadline_s = f.deadline_s,
      .clients = f.concurrency};
  std::printf(
      "%s", fmt::format("{} x {} at efficiency {:.4f}, {}: weights "
                        "{:.2f} GB, pool {:.2f} GB, {} pages ({} "
                        "tokens)\n",
                        f.replicas, device.name, device.efficiency, model.name,
                        cost.weight_bytes() / 1e9,
                        static_cast<double>(pages) * cost.page_bytes() / 1e9,
                        pages, pages / model.layers * kPageTokens)
                .c_str());
  std::vector<NamedRun> runs;
  nlohmann::json out;
  for (const PolicySpec& policy : policies) {
    options.policy = policy;
    const auto start = std::chrono::steady_clock::now();
    runs.push_back({ToString(policy), Simulate(cost, options, trace)});
    const std::chrono::duration<double> took =
        std::chrono::steady_clock::now() - start;
    const Statistics& s = runs.back().statistics;
    std::fprintf(stderr, "%s",
                 fmt::format("{}: {:.1f} s of {} steps simulated in {:.2f} s\n",
                             runs.back().policy, engine::ToSeconds(s.makespan),
                             s.steps, took.count())
                     .c_str());
    out["policies"].push_back(RunJson(runs.back()));
  }
  std::printf("%s", RunTable(runs).c_str());
  if (f.json.empty()) return absl::OkStatus();
  out["config"] = ConfigOf(f, device, options);
  return WriteFile(f.json, out.dump(2) + "\n");
}

}  // namespace
}  // namespace kf::sim

int main(int argc, char** argv) {
  kf::sim::SimFlags flags;
  CLI::App app(
      "Simulates Keyformer servers on large machines: the server's own "
      "scheduler over a cost model, in virtual time.",
      "keyformer-sim");
  app.footer(kf::sim::kExamples);
  kf::sim::AddSimFlags(app, flags);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? kf::tools::kExitOk : kf::tools::kExitUsage;
  }
  const absl::Status status = kf::sim::RunAll(flags);
  return status.ok() ? kf::tools::kExitOk : kf::sim::Refuse(status);
}
