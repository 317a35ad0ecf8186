// Who takes the CPU time of a server that streams to many.
#include <spdlog/fmt/fmt.h>

#include "kernels/core/status.h"
#include "tools/bench/scenario.h"
#include "tools/bench/session.h"

namespace kf::tools {
namespace {

// The engine's thread, and those of its kernels.
bool Computes(const std::string& thread) {
  return thread == "kf-engine" || thread == "kf-kernels";
}

}  // namespace

absl::StatusOr<ScenarioReport> RunShare(const ScenarioOptions& options,
                                        Interrupt& interrupt) {
  KF_ASSIGN_OR_RETURN(
      const auto session,
      Session::Start(options.server_binary, ServerFlags(options, {}),
                     options.seed, interrupt));
  Say(fmt::format("share: {} streams of {}", options.share_streams,
                  ShapeText(options.share)));
  const auto before = session->ThreadSeconds();
  Load load;
  load.plan = UniformPlan(options.share_streams, options.share.prompt_tokens,
                          options.share.output_tokens, 0.0, options.seed);
  load.streams = options.share_streams;
  load.cache = HalfCache();
  KF_ASSIGN_OR_RETURN(const LoadResult result,
                      session->Run(std::move(load), nullptr));
  std::map<std::string, double> seconds = session->ThreadSeconds();
  double all = 0.0;
  double others = 0.0;
  for (auto& [name, spent] : seconds) {
    const auto old = before.find(name);
    if (old != before.end()) spent -= old->second;
    all += spent;
    if (!Computes(name)) others += spent;
  }
  const Measurements measured = Measure(result.records);
  const Window window = Between(result.samples.front(), result.samples.back());
  if (measured.succeeded < options.share_streams || all <= 0.0) {
    return absl::InternalError("share: not all requests were answered");
  }
  Table table({"threads", "CPU time, s", "share"});
  nlohmann::json json = nlohmann::json::object();
  for (const auto& [name, spent] : seconds) {
    if (spent <= 0.0) continue;
    table.Add({name, fmt::format("{:.2f}", spent),
               fmt::format("{:.1f} %", 100.0 * spent / all)});
    json[name] = spent;
  }
  const double step_s =
      window.decode_s + window.prefill_s + window.replay_s + window.other_s;
  return ScenarioReport{
      .markdown = fmt::format(
          "{} streams of {} tokens, {:.0f} output tokens/s; all but the "
          "engine's and the kernels' threads: {:.1f} % of the CPU time. Of the "
          "engine's steps {:.1f} % went from logits to tokens and into the "
          "streams' messages.\n\n{}",
          options.share_streams, ShapeText(options.share),
          measured.output_tokens_per_second, 100.0 * others / all,
          step_s > 0.0 ? 100.0 * window.sampling_s / step_s : 0.0,
          table.Markdown()),
      .json = {{"cpu_seconds", json},
               {"other_threads_share", others / all},
               {"sampling_seconds", window.sampling_s},
               {"step_seconds", step_s}}};
}

}  // namespace kf::tools
