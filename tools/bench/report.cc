#include "tools/bench/report.h"

#include <spdlog/fmt/fmt.h>

namespace kf::tools {
namespace {

std::string SummaryLine(const std::string& name, const Summary& summary) {
  return fmt::format("{:<20} {:>9.2f} {:>9.2f} {:>9.2f} {:>9.2f} {:>9.2f}\n",
                     name, summary.mean, summary.p50, summary.p95, summary.p99,
                     summary.max);
}

nlohmann::json SummaryJson(const Summary& summary) {
  return {{"count", summary.count}, {"mean", summary.mean},
          {"p50", summary.p50},     {"p95", summary.p95},
          {"p99", summary.p99},     {"max", summary.max}};
}

}  // namespace

std::string ReportTable(const Measurements& measured) {
  std::string out = fmt::format(
      "requests             {} ok of {} in {:.2f} s ({:.2f} a second)\n"
      "output tokens/s      {:.1f} ({} tokens)\n"
      "prompt tokens/s      {:.1f} ({} tokens)\n"
      "steady decode        {:.1f} tokens/s over {:.2f} s with {} streams\n"
      "cache budget         {:.0f} tokens on average, {} tokens evicted\n",
      measured.succeeded, measured.requests, measured.seconds,
      measured.requests_per_second, measured.output_tokens_per_second,
      measured.output_tokens, measured.prompt_tokens_per_second,
      measured.prompt_tokens, measured.steady.tokens_per_second,
      measured.steady.seconds, measured.steady.streams,
      measured.mean_budget_tokens, measured.evicted_tokens);
  out += fmt::format("{:<20} {:>9} {:>9} {:>9} {:>9} {:>9}\n", "ms", "mean",
                     "p50", "p95", "p99", "max");
  out += SummaryLine("first token", measured.first_token_ms);
  out += SummaryLine("between tokens", measured.inter_token_ms);
  out += SummaryLine("whole request", measured.request_ms);
  out +=
      fmt::format("longest gap          {:.1f} ms\n", measured.longest_gap_ms);
  for (const auto& [code, count] : measured.errors) {
    out += fmt::format("errors               {} x {}\n", count, code);
  }
  return out;
}

nlohmann::json ReportJson(const Measurements& measured) {
  return {{"requests", measured.requests},
          {"succeeded", measured.succeeded},
          {"errors", measured.errors},
          {"seconds", measured.seconds},
          {"output_tokens", measured.output_tokens},
          {"prompt_tokens", measured.prompt_tokens},
          {"output_tokens_per_second", measured.output_tokens_per_second},
          {"prompt_tokens_per_second", measured.prompt_tokens_per_second},
          {"requests_per_second", measured.requests_per_second},
          {"evicted_tokens", measured.evicted_tokens},
          {"mean_budget_tokens", measured.mean_budget_tokens},
          {"first_token_ms", SummaryJson(measured.first_token_ms)},
          {"inter_token_ms", SummaryJson(measured.inter_token_ms)},
          {"longest_gap_ms", measured.longest_gap_ms},
          {"request_ms", SummaryJson(measured.request_ms)},
          {"steady",
           {{"streams", measured.steady.streams},
            {"seconds", measured.steady.seconds},
            {"tokens_per_second", measured.steady.tokens_per_second}}}};
}

}  // namespace kf::tools
