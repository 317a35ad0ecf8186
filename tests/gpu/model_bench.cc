#include "tests/gpu/model_bench.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "engine/engine.h"
#include "kernels/core/status.h"
#include "tests/gpu/load.h"

namespace kf::gpu_bench {
namespace {

using engine::CachePolicy;
using engine::Engine;
using engine::ModelConfig;

constexpr int32_t kPromptRoom = 1 << 15;  // tokens in prefill at once
// Of a request that grows, beside what it takes: the scheduler keeps one free.
constexpr double kSparePages = 4.0;

const engine::SteadyClock& TheClock() {
  static const engine::SteadyClock clock;
  return clock;
}

absl::StatusOr<std::unique_ptr<Engine>> Open(const Plan& plan,
                                             const std::string& model) {
  engine::EngineOptions options;
  options.load_format = engine::LoadFormat::kDummy;
  options.model_config = model;
  options.kv_pool_bytes = plan.kv_pool_bytes;
  options.max_batch = plan.max_batch;
  options.max_queue_tokens = int64_t{1} << 30;
  options.max_queue_requests = 1 << 20;
  // A step takes all prompts that are there: throughput, not latency.
  options.prefill_slice_tokens = kPromptRoom;
  options.prefill_workspace_tokens = kPromptRoom;
  KF_ASSIGN_OR_RETURN(auto backend, plan.make_backend());
  return Engine::Create(options, TheClock(), nullptr, std::move(backend));
}

// --- counting ---

// Elements of the matrices that a decode step reads.
double Weights(const ModelConfig& c) {
  const double qkv =
      double{1} * c.hidden * c.head_dim * (c.query_heads + 2 * c.kv_heads);
  const double o = double{1} * c.query_heads * c.head_dim * c.hidden;
  const double ffn = 3.0 * c.hidden * c.ffn;
  return c.layers * (qkv + o + ffn) + double{1} * c.vocabulary * c.hidden;
}

// Bytes that a decode step reads: weights in bf16, and K and V.
double StepBytes(const ModelConfig& c, double rows, double held) {
  return 2.0 * Weights(c) +
         rows * held * c.layers * 2.0 * c.kv_heads * c.head_dim * 2.0;
}

// Products of n rows, of the last one's logits, and causal attention.
double PromptFlops(const ModelConfig& c, double n) {
  const double logits = double{1} * c.vocabulary * c.hidden;
  const double attention =
      4.0 * c.query_heads * c.head_dim * n * (n + 1) / 2.0 * c.layers;
  return 2.0 * n * (Weights(c) - logits) + 2.0 * logits + attention;
}

engine::CacheOptions Cache(const Plan& plan, CachePolicy policy, double ratio) {
  engine::CacheOptions cache;
  cache.policy = policy;
  cache.ratio = ratio;
  cache.min_tokens = plan.min_budget;
  cache.score_queries = 0;  // all rows, as the paper
  cache.noise_seed = 1;
  return cache;
}

// --- prefill ---

struct PrefillCase {
  const char* name;
  CachePolicy policy;
  uint32_t score_queries;
};

absl::Status Prefill(const Plan& plan,
                     Engine& engine,
                     const Stopwatch& watch,
                     Report& report) {
  constexpr PrefillCase kCases[] = {
      {"unscored", CachePolicy::kFull, 0},
      {"last 256 rows scored", CachePolicy::kKeyformer, 256},
      {"all rows scored", CachePolicy::kKeyformer, 0}};
  report.Begin("Whole prefill of one prompt, " + plan.prefill_model,
               {"From submission to the first token, the best of two. "
                "extra: over the unscored one."});
  for (const int32_t tokens : plan.prefill_tokens) {
    double unscored = 0.0;
    for (const PrefillCase& c : kCases) {
      if (watch.Seconds() > plan.seconds) {
        report.Add(
            {std::to_string(tokens) + ", " + c.name, {}, "no time left"});
        continue;
      }
      Load load = {.prompt_tokens = tokens, .new_tokens = 2};
      load.cache = Cache(plan, c.policy, 0.5);
      load.cache.score_queries = c.score_queries;
      double seconds = std::numeric_limits<double>::infinity();
      for (int run = 0; run < 2; ++run) {
        KF_ASSIGN_OR_RETURN(const Measured measured, Run(engine, load));
        seconds = std::min(seconds, measured.prompts_s);
      }
      if (c.policy == CachePolicy::kFull) unscored = seconds;
      const double tflops =
          PromptFlops(engine.config(), tokens) / seconds * 1e-12;
      report.Add({std::to_string(tokens) + ", " + c.name,
                  {{"ms", seconds * 1e3},
                   {"tokens_per_s", tokens / seconds},
                   {"tflops", tflops},
                   {"of_peak_pct", Percent(tflops, plan.peak_tflops)},
                   {"extra_pct", Percent(seconds - unscored, unscored)}},
                  ""});
    }
  }
  return absl::OkStatus();
}

// --- the paper's Table 1 ---

struct Policy {
  const char* name;
  CachePolicy policy;
  double ratio;
};
constexpr Policy kPolicies[] = {
    {"FULL", CachePolicy::kFull, 1.0},
    {"H2O 90 %", CachePolicy::kH2O, 0.9},
    {"KEYFORMER 50 %", CachePolicy::kKeyformer, 0.5}};

// Requests whose whole length, or budget, the pool holds.
int32_t LargestBatch(const Plan& plan,
                     Engine& engine,
                     int32_t tokens,
                     const Policy& policy) {
  const bool full = policy.policy == CachePolicy::kFull;
  const double held = full ? 2.0 * tokens : std::ceil(policy.ratio * tokens);
  const double of_layer =
      std::ceil((held + 1.0) / kPageTokens) + (full ? kSparePages : 0.0);
  const auto pages = static_cast<int64_t>(of_layer * engine.config().layers);
  const int64_t fits = engine.Stats().pages_total / pages;
  return static_cast<int32_t>(std::clamp<int64_t>(fits, 1, plan.max_batch));
}

struct Cell {
  int32_t tokens = 0;  // of the prompt, and as many to generate
  int32_t batch = 0;
  Policy policy;
};

int32_t NewTokens(const Plan& plan,
                  const Engine& engine,
                  int32_t prompt,
                  int32_t tokens) {
  return std::min(engine.config().context_tokens - prompt,
                  std::max(tokens, plan.new_tokens));
}

// A full cache grows: its step is measured at the end as well, after a prompt
// of nearly twice the length.
absl::Status MeasureEnd(const Plan& plan,
                        Engine& engine,
                        const Cell& cell,
                        Measured& measured,
                        std::string& note) {
  const int32_t prompt = 2 * cell.tokens - plan.measured_steps - 4;
  Load load = {.requests = measured.requests,
               .prompt_tokens = prompt,
               .new_tokens = NewTokens(plan, engine, prompt, cell.tokens),
               .steps = plan.measured_steps / 2,
               .prompt_limit_s = 2.0 * plan.cell_s,
               .cache = Cache(plan, CachePolicy::kFull, 1.0)};
  KF_ASSIGN_OR_RETURN(const Measured end, Run(engine, load));
  if (end.requests < measured.requests || !(end.step_s > 0.0)) {
    note += "; step at the end not measured";
    return absl::OkStatus();
  }
  measured.step_s = (measured.step_s + end.step_s) / 2.0;
  return absl::OkStatus();
}

absl::Status MeasureCell(const Plan& plan,
                         Engine& engine,
                         const Cell& cell,
                         const DeviceLimits& limits,
                         Report& report) {
  const bool full = cell.policy.policy == CachePolicy::kFull;
  const Load load = {
      .requests = cell.batch,
      .prompt_tokens = cell.tokens,
      .new_tokens = NewTokens(plan, engine, cell.tokens, cell.tokens),
      .steps = plan.measured_steps,
      .prompt_limit_s = plan.cell_s,
      .cache = Cache(plan, cell.policy.policy, cell.policy.ratio)};
  KF_ASSIGN_OR_RETURN(Measured measured, Run(engine, load));
  std::string note = std::to_string(plan.measured_steps) + " steps measured";
  if (measured.requests < cell.batch) {
    note += "; time limit: " + std::to_string(cell.batch) + " would fit";
  }
  const double first_step_s = measured.step_s;
  const double held =
      full ? cell.tokens : std::ceil(cell.policy.ratio * cell.tokens);
  const double roofline_s =
      limits.copy_bytes_per_s > 0.0
          ? StepBytes(engine.config(), measured.requests, held) /
                limits.copy_bytes_per_s
          : kUnknown;
  if (full) {
    KF_RETURN_IF_ERROR(MeasureEnd(plan, engine, cell, measured, note));
  }
  const double batch = measured.requests;
  const double total_s =
      measured.prompts_s +
      std::max(cell.tokens - measured.early_tokens, 0.0) * measured.step_s;
  report.Add(
      {std::to_string(cell.tokens) + " + " + std::to_string(cell.tokens) +
           ", " + cell.policy.name,
       {{"batch", batch},
        {"tokens_per_s", batch * cell.tokens / total_s},
        {"prompts_s", measured.prompts_s},
        {"step_ms", measured.step_s * 1e3},
        {"first_step_ms", first_step_s * 1e3},
        {"first_step_of_roofline_pct", Percent(roofline_s, first_step_s)}},
       note});
  return absl::OkStatus();
}

absl::Status PaperTable(const Plan& plan,
                        Engine& engine,
                        const DeviceLimits& limits,
                        const Stopwatch& watch,
                        Report& report) {
  report.Begin(
      "The paper's Table 1, " + plan.table_model,
      {"Prompt + as many generated tokens; one sequence a request, all prompt "
       "rows scored. Extrapolated: prompts are computed, then some steps "
       "measured, and all others taken to cost the same (FULL: the mean of "
       "steps at the beginning and at the end). tokens_per_s counts generated "
       "tokens over prompts and steps.",
       "roofline: weights and held K and V, once, at the copy's bandwidth."});
  for (const int32_t batch : plan.table_batches) {
    for (const int32_t tokens : plan.table_tokens) {
      for (const Policy& policy : kPolicies) {
        Cell cell = {tokens, batch, policy};
        if (batch == 0) {
          cell.batch = LargestBatch(plan, engine, tokens, policy);
        }
        if (watch.Seconds() > plan.seconds) {
          report.Add({std::to_string(tokens) + " + " + std::to_string(tokens) +
                          ", " + policy.name,
                      {{"batch", static_cast<double>(cell.batch)}},
                      "no time left"});
          continue;
        }
        KF_RETURN_IF_ERROR(MeasureCell(plan, engine, cell, limits, report));
      }
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status RunModels(const Plan& plan,
                       const DeviceLimits& limits,
                       const Stopwatch& watch,
                       Report& report) {
  {
    KF_ASSIGN_OR_RETURN(const auto engine, Open(plan, plan.prefill_model));
    KF_RETURN_IF_ERROR(Prefill(plan, *engine, watch, report));
  }
  KF_ASSIGN_OR_RETURN(const auto engine, Open(plan, plan.table_model));
  return PaperTable(plan, *engine, limits, watch, report);
}

}  // namespace kf::gpu_bench
