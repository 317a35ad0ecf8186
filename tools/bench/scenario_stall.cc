// A long prompt arrives among running streams: how long does one of them wait
// for its next token?
#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kernels/core/status.h"
#include "tools/bench/scenario.h"
#include "tools/bench/session.h"

namespace kf::tools {
namespace {

// Of the prompt that comes late: steps enough for the streams' gaps to end.
constexpr uint32_t kLateTokens = 4;

struct StallOutcome {
  double quiet_gap_s = 0.0;  // the longest in the second before the prompt
  double gap_s = 0.0;        // the longest from its arrival to its answer
  double first_token_s = 0.0;
  Window window;  // from its arrival to its answer
};

double LongestGap(const std::vector<RequestRecord>& records,
                  double begin_s,
                  double end_s) {
  double longest = 0.0;
  for (const RequestRecord& record : records) {
    longest = std::max(longest, LongestGapSeconds(record, begin_s, end_s));
  }
  return longest;
}

// The last sample before `at_s`, or the first.
const Sample& SampleBefore(const std::vector<Sample>& samples, double at_s) {
  const auto after =
      std::find_if(samples.begin() + 1, samples.end(),
                   [&](const Sample& sample) { return sample.at_s >= at_s; });
  return *(after - 1);
}

absl::StatusOr<StallOutcome> FindStall(const ScenarioOptions& options,
                                       LoadResult& result) {
  auto& records = result.records;
  const auto late = std::find_if(
      records.begin(), records.end(), [&](const RequestRecord& record) {
        return record.prompt_tokens == options.long_prompt;
      });
  // Its call may be cancelled while it ends: its first token is all we want.
  if (late == records.end() || late->arrivals.empty()) {
    return absl::InternalError("stall: the long prompt was not answered");
  }
  const double begin_s = late->start_s;
  const double end_s = late->arrivals.front().at_s;
  records.erase(late);
  for (const RequestRecord& stream : records) {
    if (stream.arrivals.empty() || stream.arrivals.front().at_s > begin_s ||
        stream.end_s < end_s) {
      return absl::InternalError(
          "stall: not all streams ran while the long prompt was worked on: "
          "the answers of --stream_shape are too short");
    }
  }
  return StallOutcome{
      .quiet_gap_s = LongestGap(records, begin_s - 1.0, begin_s),
      .gap_s = LongestGap(records, begin_s, end_s),
      .first_token_s = end_s - begin_s,
      .window = Between(SampleBefore(result.samples, begin_s),
                        result.samples.back())};
}

// How a server is told to cut prompts.
struct Slicing {
  std::string name;
  std::vector<std::string> flags;
};

// Of a fixed size, for each of --slices; then the server's own, which follows
// the machine's speed.
std::vector<Slicing> Slicings(const ScenarioOptions& options) {
  std::vector<Slicing> slicings;
  for (const uint32_t slice : options.slices) {
    const uint32_t tokens = slice == 0 ? options.long_prompt : slice;
    slicings.push_back({absl::StrCat(tokens, slice == 0 ? " (none)" : ""),
                        {absl::StrCat("--prefill_slice_tokens=", tokens),
                         "--prefill_slice_ms=0"}});
  }
  slicings.push_back({"default", {}});
  return slicings;
}

absl::StatusOr<StallOutcome> MeasureStall(const ScenarioOptions& options,
                                          const Slicing& slicing,
                                          Interrupt& interrupt) {
  const uint32_t workspace =
      options.long_prompt + options.streams * options.stream.prompt_tokens;
  std::vector<std::string> flags = slicing.flags;
  flags.push_back(absl::StrCat("--prefill_workspace_tokens=", workspace));
  KF_ASSIGN_OR_RETURN(
      const auto session,
      Session::Start(options.server_binary, ServerFlags(options, flags),
                     options.seed, interrupt));
  Load load;
  load.plan = UniformPlan(options.streams, options.stream.prompt_tokens,
                          options.stream.output_tokens, 0.0, options.seed);
  load.plan.push_back({.prompt_tokens = options.long_prompt,
                       .output_tokens = kLateTokens,
                       .settle_s = options.settle_s});
  load.streams = load.plan.size();
  load.cache = HalfCache();
  const auto watch = [](const std::vector<Sample>& samples) {
    return samples.back().page.Requests().succeeded ==
           samples.front().page.Requests().succeeded;
  };
  KF_ASSIGN_OR_RETURN(LoadResult result, session->Run(std::move(load), watch));
  return FindStall(options, result);
}

}  // namespace

absl::StatusOr<ScenarioReport> RunStall(const ScenarioOptions& options,
                                        Interrupt& interrupt) {
  Table table({"prefill slice, tokens", "longest gap before, ms",
               "longest gap, ms", "slice, ms", "step, ms",
               "gap / (slice + step)", "first token of the prompt, s"});
  ScenarioReport report;
  report.json = nlohmann::json::array();
  for (const Slicing& slicing : Slicings(options)) {
    Say(absl::StrCat("stall: slices of ", slicing.name));
    KF_ASSIGN_OR_RETURN(const StallOutcome outcome,
                        MeasureStall(options, slicing, interrupt));
    const Window& window = outcome.window;
    const double bound_s = window.slice_s() + window.step_s();
    table.Add({slicing.name, fmt::format("{:.1f}", 1e3 * outcome.quiet_gap_s),
               fmt::format("{:.1f}", 1e3 * outcome.gap_s),
               fmt::format("{:.1f}", 1e3 * window.slice_s()),
               fmt::format("{:.1f}", 1e3 * window.step_s()),
               fmt::format("{:.2f}", outcome.gap_s / bound_s),
               fmt::format("{:.2f}", outcome.first_token_s)});
    report.json.push_back({{"slices_of", slicing.name},
                           {"longest_gap_before_ms", 1e3 * outcome.quiet_gap_s},
                           {"longest_gap_ms", 1e3 * outcome.gap_s},
                           {"slice_ms", 1e3 * window.slice_s()},
                           {"step_ms", 1e3 * window.step_s()},
                           {"slices", window.slices},
                           {"first_token_s", outcome.first_token_s}});
  }
  report.markdown = fmt::format(
      "A prompt of {} tokens arrives among {} streams of {} tokens. Slice and "
      "step are means while it is worked on.\n\n{}",
      options.long_prompt, options.streams, ShapeText(options.stream),
      table.Markdown());
  return report;
}

}  // namespace kf::tools
