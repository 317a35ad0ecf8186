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

// Bytes, but for most_running.
struct MemoryUse {
  double pool = 0.0;
  double high_water = 0.0;  // of the pool's pages
  double workspace = 0.0;
  double before = 0.0;  // resident, without pages
  double peak = 0.0;    // resident
  double full_pages = 0.0;
  double most_running = 0.0;
};

// So that activations are in use; what this takes of pool and workspace is
// taken out again: resident bytes without them.
absl::StatusOr<double> WarmUp(const ScenarioOptions& options,
                              const PageSizes& sizes,
                              Session& session) {
  Load warmup;
  warmup.plan = UniformPlan(1, kWarmupTokens, 1, 0.0, options.seed);
  warmup.cache = HalfCache();
  KF_RETURN_IF_ERROR(session.Run(std::move(warmup), nullptr).status());
  const uint32_t kept = HalfBudget(session.info(), kWarmupTokens);
  return static_cast<double>(session.Memory().resident_bytes) -
         sizes.page_bytes * static_cast<double>(sizes.Pages(kept)) -
         WorkspaceBytes(session.info(), sizes, kWarmupTokens);
}

absl::Status MeasureMemory(const ScenarioOptions& options,
                           Session& session,
                           MemoryUse& use) {
  const PlannedRequest& shape = options.large;
  const size_t count = options.large_requests;
  const ProcessMemory idle = session.Memory();
  Load load;
  load.plan = UniformPlan(count, shape.prompt_tokens, shape.output_tokens, 0.0,
                          options.seed);
  load.streams = count;
  load.cache = HalfCache();
  KF_ASSIGN_OR_RETURN(const LoadResult result,
                      session.Run(std::move(load), nullptr));
  const Measurements measured = Measure(result.records);
  if (measured.succeeded < count) {
    return absl::InternalError(absl::StrCat(
        "memory: ", count - measured.succeeded, " requests failed"));
  }
  for (const Sample& sample : result.samples) {
    use.high_water = std::max(
        use.high_water, use.pool * sample.page.Value("kv_cache_usage_ratio"));
    use.most_running =
        std::max(use.most_running, sample.page.Requests().running);
    use.peak =
        std::max(use.peak, static_cast<double>(sample.memory.resident_bytes));
  }
  // Samples may miss it; where loading the model took more, they must do.
  const ProcessMemory after = session.Memory();
  if (after.peak_bytes > idle.peak_bytes) {
    use.peak = static_cast<double>(after.peak_bytes);
  }
  return absl::OkStatus();
}

ScenarioReport MemoryReport(const ScenarioOptions& options,
                            const MemoryUse& use) {
  Table table({"", "MiB"});
  table.Add({"pool", Mebibytes(use.pool)});
  table.Add(
      {"pool's high-water mark (pages in use)", Mebibytes(use.high_water)});
  table.Add({fmt::format("prompt workspace, {} tokens",
                         2 * options.large.prompt_tokens),
             Mebibytes(use.workspace)});
  table.Add({"resident before, without pages", Mebibytes(use.before)});
  table.Add({"resident, peak", Mebibytes(use.peak)});
  table.Add({"growth", Mebibytes(use.peak - use.before)});
  table.Add({"pool + workspace", Mebibytes(use.pool + use.workspace)});
  table.Add({"FULL's pages for the same requests", Mebibytes(use.full_pages)});
  return {.markdown = fmt::format(
              "{} requests of {} tokens at half of the prompt, all at once; "
              "{:.0f} ran at once.\n\n{}",
              options.large_requests, ShapeText(options.large),
              use.most_running, table.Markdown()),
          .json = {{"pool_bytes", use.pool},
                   {"pool_high_water_bytes", use.high_water},
                   {"workspace_bytes", use.workspace},
                   {"resident_before_bytes", use.before},
                   {"resident_peak_bytes", use.peak},
                   {"growth_bytes", use.peak - use.before},
                   {"most_running", use.most_running}}};
}

}  // namespace

absl::StatusOr<ScenarioReport> RunMemory(const ScenarioOptions& options,
                                         Interrupt& interrupt) {
  pb::ModelInfoResponse info;
  KF_ASSIGN_OR_RETURN(const PageSizes sizes,
                      AskPageSizes(options, &info, interrupt));
  const PlannedRequest& shape = options.large;
  const uint64_t count = options.large_requests;
  const uint32_t all_tokens = shape.prompt_tokens + shape.output_tokens;
  // Layers that keep more than half of a prompt round up by themselves.
  const uint64_t half_pages =
      count *
      (sizes.Pages(HalfBudget(info, shape.prompt_tokens)) + sizes.layers);
  const uint64_t pool_bytes = sizes.PoolBytes(half_pages);
  const uint32_t workspace_tokens = 2 * shape.prompt_tokens;
  KF_ASSIGN_OR_RETURN(
      const auto session,
      Session::Start(
          options.server_binary,
          ServerFlags(options, {absl::StrCat("--kv_pool_bytes=", pool_bytes),
                                absl::StrCat("--max_batch=", count),
                                absl::StrCat("--prefill_workspace_tokens=",
                                             workspace_tokens)}),
          options.seed, interrupt));
  MemoryUse use;
  use.pool = static_cast<double>(pool_bytes);
  use.workspace = WorkspaceBytes(info, sizes, workspace_tokens);
  use.full_pages =
      sizes.page_bytes * static_cast<double>(count * sizes.Pages(all_tokens));
  KF_ASSIGN_OR_RETURN(use.before, WarmUp(options, sizes, *session));
  Say(fmt::format("memory: {} x {}", count, ShapeText(shape)));
  KF_RETURN_IF_ERROR(MeasureMemory(options, *session, use));
  return MemoryReport(options, use);
}

}  // namespace kf::tools
