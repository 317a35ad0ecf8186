// Several times the requests that a server can answer: it goes on at full speed
// and refuses the rest at once.
#include <spdlog/fmt/fmt.h>

#include <algorithm>

#include "kernels/core/status.h"
#include "tools/bench/measurements.h"
#include "tools/bench/scenario.h"
#include "tools/bench/session.h"

namespace kf::tools {
namespace {

constexpr uint32_t kBatch = 16;
constexpr uint32_t kQueue = 32;  // requests that may wait
// Of a load's time, until its batch is full and its memory is what it stays.
constexpr double kRampShare = 0.2;
constexpr size_t kMaxInFlight = 256;
// A load without its ramp, and the requests that were refused.
struct Half {
  Window window;
  RequestCounts counts;  // of all that came
  Summary refused_ms;
  uint64_t resident_after_ramp = 0;
  uint64_t resident_at_end = 0;
  size_t scrapes = 0;
  size_t mismatches = 0;
};

Half Look(const LoadResult& result, double seconds) {
  const auto ramp =
      std::find_if(result.samples.begin(), result.samples.end() - 1,
                   [&](const Sample& sample) {
                     return sample.at_s >= kRampShare * seconds;
                   });
  // Requests arrive until then; what comes later empties the queue.
  const auto end = std::find_if(
      ramp, result.samples.end() - 1,
      [&](const Sample& sample) { return sample.at_s >= 0.98 * seconds; });
  Half half;
  half.window = Between(*ramp, *end);
  half.resident_after_ramp = ramp->memory.resident_bytes;
  half.resident_at_end = end->memory.resident_bytes;
  half.scrapes = result.samples.size();
  half.mismatches = CountMismatches(result.samples);
  const RequestCounts before = result.samples.front().page.Requests();
  half.counts = result.samples.back().page.Requests();
  half.counts.received -= before.received;
  half.counts.succeeded -= before.succeeded;
  half.counts.rejected -= before.rejected;
  half.counts.failed -= before.failed;
  half.counts.cancelled -= before.cancelled;
  std::vector<double> refused_ms;
  for (const RequestRecord& record : result.records) {
    if (record.code != "RESOURCE_EXHAUSTED") continue;
    refused_ms.push_back(1e3 * (record.end_s - record.start_s));
  }
  half.refused_ms = Summarize(std::move(refused_ms));
  return half;
}

nlohmann::json HalfJson(const Half& half) {
  return {{"tokens_per_second", half.window.tokens_per_second()},
          {"mean_batch", half.window.mean_batch()},
          {"received", half.counts.received},
          {"succeeded", half.counts.succeeded},
          {"rejected", half.counts.rejected},
          {"failed", half.counts.failed},
          {"cancelled", half.counts.cancelled},
          {"refused_p50_ms", half.refused_ms.p50},
          {"refused_p99_ms", half.refused_ms.p99},
          {"refused_max_ms", half.refused_ms.max},
          {"resident_after_ramp_bytes", half.resident_after_ramp},
          {"resident_at_end_bytes", half.resident_at_end},
          {"scrapes", half.scrapes},
          {"scrapes_that_do_not_add_up", half.mismatches}};
}

std::vector<std::string> Row(const std::string& load,
                             const Half& half,
                             double once) {
  return {
      load,
      fmt::format("{:.0f}", half.counts.received),
      fmt::format("{:.0f}", half.counts.succeeded),
      fmt::format("{:.0f}", half.counts.rejected),
      fmt::format("{:.0f}", half.window.tokens_per_second()),
      fmt::format("{:.1f} %", 100.0 * half.window.tokens_per_second() / once),
      fmt::format("{:.1f}, {:.1f}, {:.1f}", half.refused_ms.p50,
                  half.refused_ms.p99, half.refused_ms.max),
      Mebibytes(static_cast<double>(half.resident_after_ramp)) + ", " +
          Mebibytes(static_cast<double>(half.resident_at_end)),
      fmt::format("{} of {}", half.mismatches, half.scrapes)};
}

}  // namespace

absl::StatusOr<ScenarioReport> RunOverload(const ScenarioOptions& options,
                                           Interrupt& interrupt) {
  KF_ASSIGN_OR_RETURN(
      const auto session,
      Session::Start(
          options.server_binary,
          ServerFlags(options, {absl::StrCat("--max_batch=", kBatch),
                                absl::StrCat("--max_queue_requests=", kQueue)}),
          options.seed, interrupt));
  const PlannedRequest& shape = options.small;
  Say(fmt::format("overload: {} streams, {}", kBatch, ShapeText(shape)));
  Load load;
  load.plan = UniformPlan(kBatch, shape.prompt_tokens, shape.output_tokens, 0.0,
                          options.seed);
  load.streams = kBatch;
  load.repeat_plan = true;
  load.duration_s = options.seconds;
  load.cache = HalfCache();
  KF_ASSIGN_OR_RETURN(const LoadResult once_result,
                      session->Run(std::move(load), nullptr));
  const Half once = Look(once_result, options.seconds);
  const double rate = once.window.tokens_per_second() / shape.output_tokens;
  Say(fmt::format("overload: {:.2f} requests/s are answered; {:.1f} times that",
                  rate, options.overload));
  const double seconds = 2.0 * options.seconds;
  Load over;
  over.plan =
      UniformPlan(static_cast<size_t>(options.overload * rate * seconds) + 1,
                  shape.prompt_tokens, shape.output_tokens,
                  options.overload * rate, options.seed + 1);
  over.streams = kMaxInFlight;
  over.duration_s = seconds;
  over.cache = HalfCache();
  KF_ASSIGN_OR_RETURN(const LoadResult over_result,
                      session->Run(std::move(over), nullptr));
  const Half half = Look(over_result, seconds);
  Table table({"load", "received", "succeeded", "rejected", "tokens/s", "of 1x",
               "refused in p50, p99, max ms",
               "resident after ramp, at end, MiB",
               "scrapes that do not add up"});
  const double base = once.window.tokens_per_second();
  table.Add(Row("1x", once, base));
  table.Add(Row(fmt::format("{:.1f}x", options.overload), half, base));
  return ScenarioReport{
      .markdown = fmt::format(
          "Requests of {} tokens, batch {}, {} may wait; 1x: {} streams, each "
          "sending when it has its answer, for {:.0f} s; then {:.1f} times the "
          "{:.2f} requests/s that were answered, as a Poisson process, for "
          "{:.0f} s.\n\n{}",
          ShapeText(shape), kBatch, kQueue, kBatch, options.seconds,
          options.overload, rate, seconds, table.Markdown()),
      .json = {{"once", HalfJson(once)}, {"over", HalfJson(half)}}};
}

}  // namespace kf::tools
