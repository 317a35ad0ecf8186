// Long prompts, many at once: what the process takes, against the pool and the
// workspace that it was given.
#include <spdlog/fmt/fmt.h>

#include <algorithm>

#include "kernels/core/status.h"
#include "tools/bench/scenario.h"
#include "tools/bench/session.h"

namespace kf::tools {
namespace {

constexpr uint32_t kWarmupTokens = 512;

// One layer's K and V, and the hidden states, of the prompts in flight.
double WorkspaceBytes(const pb::ModelInfoResponse& info,
                      const PageSizes& sizes,
                      uint32_t tokens) {
  const double hidden_bytes =
      4.0 * info.query_heads() * info.head_dim();  // of a token, f32
  const double page_bytes = sizes.page_bytes + 16.0 * hidden_bytes;
  return page_bytes * tokens / 16.0;
}

}  // namespace

absl::StatusOr<ScenarioReport> RunMemory(const ScenarioOptions& options,
                                         Interrupt& interrupt) {
  pb::ModelInfoResponse info;
  KF_ASSIGN_OR_RETURN(const PageSizes sizes,
                      AskPageSizes(options, &info, interrupt));
  const PlannedRequest& shape = options.large;
  const uint64_t count = options.large_requests;
  const uint64_t all_tokens = shape.prompt_tokens + shape.output_tokens;
  const uint64_t full_pages =
      count * sizes.Pages(static_cast<uint32_t>(all_tokens));
  // Layers that keep more than half of a prompt round up by themselves.
  const uint64_t half_pages =
      count *
      (sizes.Pages(HalfBudget(info, shape.prompt_tokens)) + sizes.layers);
  const double pool = static_cast<double>(sizes.PoolBytes(half_pages));
  const uint32_t workspace_tokens = 2 * shape.prompt_tokens;
  KF_ASSIGN_OR_RETURN(
      const auto session,
      Session::Start(
          options.server_binary,
          ServerFlags(options, {fmt::format("--kv_pool_bytes={:.0f}", pool),
                                absl::StrCat("--max_batch=", count),
                                absl::StrCat("--prefill_workspace_tokens=",
                                             workspace_tokens)}),
          options.seed, interrupt));
  // So that activations are in use; what this takes of pool and workspace is
  // taken out again.
  Load warmup;
  warmup.plan = UniformPlan(1, kWarmupTokens, 1, 0.0, options.seed);
  warmup.cache = HalfCache();
  KF_RETURN_IF_ERROR(session->Run(std::move(warmup), nullptr).status());
  const ProcessMemory idle = session->Memory();
  const double before =
      static_cast<double>(idle.resident_bytes) -
      sizes.page_bytes *
          static_cast<double>(sizes.Pages(HalfBudget(info, kWarmupTokens))) -
      WorkspaceBytes(info, sizes, kWarmupTokens);
  Say(fmt::format("memory: {} x {}", count, ShapeText(shape)));
  Load load;
  load.plan = UniformPlan(count, shape.prompt_tokens, shape.output_tokens, 0.0,
                          options.seed);
  load.streams = count;
  load.cache = HalfCache();
  KF_ASSIGN_OR_RETURN(const LoadResult result,
                      session->Run(std::move(load), nullptr));
  const Measurements measured = Measure(result.records);
  if (measured.succeeded < count) {
    return absl::InternalError(absl::StrCat(
        "memory: ", count - measured.succeeded, " requests failed"));
  }
  double usage = 0.0;
  double running = 0.0;
  double peak = 0.0;
  for (const Sample& sample : result.samples) {
    usage = std::max(usage, sample.page.Value("kv_cache_usage_ratio"));
    running = std::max(running, sample.page.Requests().running);
    peak = std::max(peak, static_cast<double>(sample.memory.resident_bytes));
  }
  // Samples may miss it; where loading the model took more, they must do.
  if (const ProcessMemory after = session->Memory();
      after.peak_bytes > idle.peak_bytes) {
    peak = static_cast<double>(after.peak_bytes);
  }
  const double grown = peak - before;
  const double workspace = WorkspaceBytes(info, sizes, workspace_tokens);
  Table table({"", "MiB"});
  table.Add({"pool", Mebibytes(pool)});
  table.Add({"pool's high-water mark (pages in use)", Mebibytes(usage * pool)});
  table.Add({fmt::format("prompt workspace, {} tokens", workspace_tokens),
             Mebibytes(workspace)});
  table.Add({"resident before, without pages", Mebibytes(before)});
  table.Add({"resident, peak", Mebibytes(peak)});
  table.Add({"growth", Mebibytes(grown)});
  table.Add({"pool + workspace", Mebibytes(pool + workspace)});
  table.Add({"FULL's pages for the same requests",
             Mebibytes(sizes.page_bytes * static_cast<double>(full_pages))});
  return ScenarioReport{
      .markdown = fmt::format(
          "{} requests of {} tokens at half of the prompt, all at once; {:.0f} "
          "ran at once.\n\n{}",
          count, ShapeText(shape), running, table.Markdown()),
      .json = {{"pool_bytes", pool},
               {"pool_high_water_bytes", usage * pool},
               {"workspace_bytes", workspace},
               {"resident_before_bytes", before},
               {"resident_peak_bytes", peak},
               {"growth_bytes", grown},
               {"most_running", running}}};
}

}  // namespace kf::tools
