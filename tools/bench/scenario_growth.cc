// How long a step takes as an answer grows: under a budget it reads as much at
// the end as at the beginning.
#include <spdlog/fmt/fmt.h>

#include <algorithm>

#include "kernels/core/status.h"
#include "tools/bench/scenario.h"
#include "tools/bench/session.h"

namespace kf::tools {
namespace {

constexpr uint32_t kBinTokens = 512;

absl::StatusOr<std::vector<double>> MeasureGrowth(
    const ScenarioOptions& options,
    const pb::CacheOptions& cache,
    Interrupt& interrupt) {
  KF_ASSIGN_OR_RETURN(
      const auto session,
      Session::Start(options.server_binary, ServerFlags(options, {}),
                     options.seed, interrupt));
  Load load;
  load.plan = {options.growth};
  load.cache = cache;
  KF_ASSIGN_OR_RETURN(const LoadResult result,
                      session->Run(std::move(load), nullptr));
  if (result.records.empty() || result.records.front().code != "OK") {
    return absl::InternalError("growth: the request was not answered");
  }
  return SecondsPerToken(result.records.front(), kBinTokens);
}

}  // namespace

absl::StatusOr<ScenarioReport> RunGrowth(const ScenarioOptions& options,
                                         Interrupt& interrupt) {
  Say(fmt::format("growth: {}, KEYFORMER 50 %", ShapeText(options.growth)));
  KF_ASSIGN_OR_RETURN(const std::vector<double> half,
                      MeasureGrowth(options, HalfCache(), interrupt));
  Say(fmt::format("growth: {}, FULL", ShapeText(options.growth)));
  KF_ASSIGN_OR_RETURN(const std::vector<double> full,
                      MeasureGrowth(options, FullCache(), interrupt));
  Table table(
      {"tokens generated", "KEYFORMER 50 %, ms a token", "FULL, ms a token"});
  nlohmann::json json = nlohmann::json::array();
  for (size_t i = 0; i < std::min(half.size(), full.size()); ++i) {
    const auto first = static_cast<uint32_t>(i) * kBinTokens;
    table.Add({fmt::format("{} to {}", first, first + kBinTokens),
               fmt::format("{:.2f}", 1e3 * half[i]),
               fmt::format("{:.2f}", 1e3 * full[i])});
    json.push_back({{"generated", first},
                    {"keyformer_ms", 1e3 * half[i]},
                    {"full_ms", 1e3 * full[i]}});
  }
  return ScenarioReport{
      .markdown = fmt::format("One stream of {} tokens; medians.\n\n{}",
                              ShapeText(options.growth), table.Markdown()),
      .json = std::move(json)};
}

}  // namespace kf::tools
