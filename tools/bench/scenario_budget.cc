// FULL against KEYFORMER at half of the prompt, with the same program and the
// same pool: how many run, and what that gives.
#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "kernels/core/status.h"
#include "tools/bench/measurements.h"
#include "tools/bench/scenario.h"
#include "tools/bench/session.h"

namespace kf::tools {
namespace {

// Both policies may run as many as their pages allow.
constexpr uint32_t kMaxBatch = 256;
// Wait at any moment, so that a place never stays empty.
constexpr uint32_t kWaiting = 8;

struct Policy {
  const char* name;
  pb::CacheOptions cache;
};

struct BudgetOutcome {
  Measurements measured;
  Window steady;  // after the first request's end
  Window all;
  double most_running = 0.0;
};

class Budget {
 public:
  Budget(const ScenarioOptions& options,
         const pb::ModelInfoResponse& info,
         const PageSizes& sizes,
         Interrupt& interrupt)
      : options_(options), info_(info), sizes_(sizes), interrupt_(interrupt) {}

  absl::Status Run();
  ScenarioReport Report() const;

 private:
  // Pages of `requests` FULL requests that have been generated to their end.
  uint64_t Pages(uint32_t requests, const PlannedRequest& shape) const {
    return requests * sizes_.Pages(shape.prompt_tokens + shape.output_tokens);
  }
  // Requests of half a cache that the pool holds.
  uint32_t Capacity(uint32_t pool, const PlannedRequest& shape) const;
  absl::StatusOr<BudgetOutcome> Measure(uint32_t pool,
                                        const PlannedRequest& shape,
                                        bool to_the_end,
                                        const Policy& policy);
  absl::Status CompareSteady(uint32_t pool);
  void AddSteady(uint32_t pool,
                 const Policy& policy,
                 const BudgetOutcome& outcome,
                 const Window& full,
                 const std::string& ratios);
  absl::Status CompareWhole(uint32_t pool);
  void Keep(const char* part,
            uint32_t pool,
            const char* policy,
            const BudgetOutcome& outcome);
  void AddProfile(const std::string& what,
                  const char* policy,
                  const Window& window);

  const ScenarioOptions& options_;
  const pb::ModelInfoResponse& info_;
  const PageSizes sizes_;
  Interrupt& interrupt_;
  const std::vector<Policy> policies_ = {{"FULL", FullCache()},
                                         {"KEYFORMER 50 %", HalfCache()}};
  Table steady_{{"pool, FULL requests", "policy", "running", "batch",
                 "decode tokens/s", "against FULL", "batch ratio",
                 "step time ratio", "prefill, share of time", "all tokens/s",
                 "against FULL, each turn"}};
  Table whole_{{"pool, FULL requests", "policy", "running", "batch", "seconds",
                "tokens/s", "against FULL", "first token p50, s", "p95, s",
                "preempted"}};
  Table profile_{{"run", "policy", "batch", "step, ms", "attention, ms",
                  "products, ms", "sampling, ms", "prefill, s", "replay, s",
                  "other, s", "of, s"}};
  nlohmann::json json_ = nlohmann::json::array();
};

uint32_t Budget::Capacity(uint32_t pool, const PlannedRequest& shape) const {
  const uint64_t half =
      sizes_.Pages(std::min(HalfBudget(info_, shape.prompt_tokens),
                            shape.prompt_tokens + shape.output_tokens));
  return static_cast<uint32_t>(
      std::clamp<uint64_t>(Pages(pool, shape) / half, 1, kMaxBatch));
}

absl::StatusOr<BudgetOutcome> Budget::Measure(uint32_t pool,
                                              const PlannedRequest& shape,
                                              bool to_the_end,
                                              const Policy& policy) {
  Say(fmt::format("budget: pool of {}, {}, {}", pool, ShapeText(shape),
                  policy.name));
  const uint64_t bytes = sizes_.PoolBytes(Pages(pool, shape));
  KF_ASSIGN_OR_RETURN(
      const auto session,
      Session::Start(
          options_.server_binary,
          ServerFlags(options_, {absl::StrCat("--kv_pool_bytes=", bytes),
                                 absl::StrCat("--max_batch=", kMaxBatch)}),
          options_.seed, interrupt_));
  const uint32_t capacity = Capacity(pool, shape);
  const size_t requests = size_t{capacity} * options_.rounds;
  Load load;
  load.plan = UniformPlan(requests, shape.prompt_tokens, shape.output_tokens,
                          0.0, options_.seed);
  load.streams = to_the_end ? requests : capacity + kWaiting;
  load.repeat_plan = !to_the_end;
  load.cache = policy.cache;
  WatchFn watch = nullptr;
  if (!to_the_end) {
    watch = [this](const std::vector<Sample>& samples) {
      return Steady(samples).wall_s < options_.seconds;
    };
  }
  KF_ASSIGN_OR_RETURN(const LoadResult result,
                      session->Run(std::move(load), watch));
  BudgetOutcome outcome{
      .measured = kf::tools::Measure(result.records),
      .steady = Steady(result.samples),
      .all = Between(result.samples.front(), result.samples.back())};
  for (const Sample& sample : result.samples) {
    outcome.most_running =
        std::max(outcome.most_running, sample.page.Requests().running);
  }
  if (to_the_end && outcome.measured.succeeded < requests) {
    return absl::InternalError(
        absl::StrCat("budget: ", requests - outcome.measured.succeeded, " of ",
                     requests, " requests failed"));
  }
  return outcome;
}

// Both policies meet each state of the machine, however it changes from turn to
// turn.
absl::Status Budget::CompareSteady(uint32_t pool) {
  struct Turn {
    BudgetOutcome full;
    BudgetOutcome half;

    double ratio() const {
      return half.steady.decode_tokens_per_second() /
             full.steady.decode_tokens_per_second();
    }
  };
  std::vector<Turn> turns(options_.turns);
  std::vector<std::string> ratios;
  for (Turn& turn : turns) {
    KF_ASSIGN_OR_RETURN(turn.full, Measure(pool, options_.steady,
                                           /*to_the_end=*/false, policies_[0]));
    KF_ASSIGN_OR_RETURN(turn.half, Measure(pool, options_.steady,
                                           /*to_the_end=*/false, policies_[1]));
    ratios.push_back(fmt::format("{:.2f}", turn.ratio()));
    Keep("steady", pool, policies_[0].name, turn.full);
    Keep("steady", pool, policies_[1].name, turn.half);
  }
  std::sort(turns.begin(), turns.end(),
            [](const Turn& a, const Turn& b) { return a.ratio() < b.ratio(); });
  const Turn& median = turns[(turns.size() - 1) / 2];
  AddSteady(pool, policies_[0], median.full, median.full.steady, "");
  AddSteady(pool, policies_[1], median.half, median.full.steady,
            absl::StrJoin(ratios, ", "));
  return absl::OkStatus();
}

void Budget::AddSteady(uint32_t pool,
                       const Policy& policy,
                       const BudgetOutcome& outcome,
                       const Window& full,
                       const std::string& ratios) {
  const Window& window = outcome.steady;
  steady_.Add(
      {fmt::format("{}", pool), policy.name,
       fmt::format("{:.0f}", outcome.most_running),
       fmt::format("{:.1f}", window.mean_batch()),
       fmt::format("{:.0f}", window.decode_tokens_per_second()),
       fmt::format("{:.2f}", window.decode_tokens_per_second() /
                                 full.decode_tokens_per_second()),
       fmt::format("{:.2f}", window.mean_batch() / full.mean_batch()),
       fmt::format("{:.2f}", window.step_s() / full.step_s()),
       fmt::format("{:.0f} %", 100.0 * window.prefill_s / window.wall_s),
       fmt::format("{:.0f}", window.tokens_per_second()), ratios});
  AddProfile(fmt::format("steady, {}", pool), policy.name, window);
}

absl::Status Budget::CompareWhole(uint32_t pool) {
  double full = 0.0;
  for (const Policy& policy : policies_) {
    KF_ASSIGN_OR_RETURN(
        const BudgetOutcome outcome,
        Measure(pool, options_.whole, /*to_the_end=*/true, policy));
    const Measurements& m = outcome.measured;
    if (&policy == &policies_.front()) full = m.output_tokens_per_second;
    whole_.Add({fmt::format("{}", pool), policy.name,
                fmt::format("{:.0f}", outcome.most_running),
                fmt::format("{:.1f}", outcome.all.mean_batch()),
                fmt::format("{:.1f}", m.seconds),
                fmt::format("{:.0f}", m.output_tokens_per_second),
                fmt::format("{:.2f}", m.output_tokens_per_second / full),
                fmt::format("{:.1f}", m.first_token_ms.p50 / 1e3),
                fmt::format("{:.1f}", m.first_token_ms.p95 / 1e3),
                fmt::format("{:.0f}", outcome.all.preempted)});
    AddProfile(fmt::format("whole, {}", pool), policy.name, outcome.all);
    Keep("whole", pool, policy.name, outcome);
  }
  return absl::OkStatus();
}

void Budget::AddProfile(const std::string& what,
                        const char* policy,
                        const Window& window) {
  const auto per_step = [&](double seconds) {
    return fmt::format("{:.2f}", 1e3 * seconds / std::max(window.steps, 1.0));
  };
  profile_.Add({what, policy, fmt::format("{:.1f}", window.mean_batch()),
                per_step(window.decode_s), per_step(window.attention_s),
                per_step(window.products_s), per_step(window.sampling_s),
                fmt::format("{:.1f}", window.prefill_s),
                fmt::format("{:.1f}", window.replay_s),
                fmt::format("{:.1f}", window.other_s),
                fmt::format("{:.1f}", window.wall_s)});
}

void Budget::Keep(const char* part,
                  uint32_t pool,
                  const char* policy,
                  const BudgetOutcome& outcome) {
  const bool steady = std::string(part) == "steady";
  const Window& window = steady ? outcome.steady : outcome.all;
  json_.push_back(
      {{"part", part},
       {"pool_full_requests", pool},
       {"policy", policy},
       {"most_running", outcome.most_running},
       {"mean_batch", window.mean_batch()},
       {"decode_tokens_per_second", window.decode_tokens_per_second()},
       {"tokens_per_second", steady
                                 ? window.tokens_per_second()
                                 : outcome.measured.output_tokens_per_second},
       {"step_ms", 1e3 * window.step_s()},
       {"attention_s", window.attention_s},
       {"products_s", window.products_s},
       {"sampling_s", window.sampling_s},
       {"prefill_s", window.prefill_s},
       {"replay_s", window.replay_s},
       {"other_s", window.other_s},
       {"wall_s", window.wall_s},
       {"preempted", window.preempted},
       {"first_token_p50_ms", outcome.measured.first_token_ms.p50},
       {"first_token_p95_ms", outcome.measured.first_token_ms.p95}});
}

absl::Status Budget::Run() {
  for (const uint32_t pool : options_.pools) {
    if (options_.steady.prompt_tokens > 0) {
      KF_RETURN_IF_ERROR(CompareSteady(pool));
    }
  }
  for (const uint32_t pool : options_.pools) {
    if (options_.whole.prompt_tokens > 0) {
      KF_RETURN_IF_ERROR(CompareWhole(pool));
    }
  }
  return absl::OkStatus();
}

ScenarioReport Budget::Report() const {
  std::string text;
  if (options_.steady.prompt_tokens > 0) {
    text += fmt::format(
        "Steady state, {} tokens: {:.0f} s from the first request's end on, "
        "some always waiting. Decode tokens/s have the prefill's time taken "
        "out. {}\n\n{}\n",
        ShapeText(options_.steady), options_.seconds,
        options_.turns == 1
            ? std::string()
            : fmt::format("{} turns of both; shown is the one of the median "
                          "ratio (the lower of two).",
                          options_.turns),
        steady_.Markdown());
  }
  if (options_.whole.prompt_tokens > 0) {
    text += fmt::format(
        "End to end, {} tokens: all requests at once, {} times as many as the "
        "budget lets run, until the last has ended.\n\n{}\n",
        ShapeText(options_.whole), options_.rounds, whole_.Markdown());
  }
  text +=
      "Where the time goes: a decode step's parts, and the rest of the "
      "engine thread's time.\n\n" +
      profile_.Markdown();
  return {text, json_};
}

}  // namespace

absl::StatusOr<ScenarioReport> RunBudget(const ScenarioOptions& options,
                                         Interrupt& interrupt) {
  pb::ModelInfoResponse info;
  KF_ASSIGN_OR_RETURN(const PageSizes sizes,
                      AskPageSizes(options, &info, interrupt));
  Budget budget(options, info, sizes, interrupt);
  KF_RETURN_IF_ERROR(budget.Run());
  return budget.Report();
}

}  // namespace kf::tools
