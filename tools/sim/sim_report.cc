#include "tools/sim/sim_report.h"

#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <functional>

namespace kf::sim {
namespace {

using nlohmann::json;
using tools::Summary;

double Ratio(double a, double b) { return b > 0.0 ? a / b : 0.0; }

// Figures of a run that are shares or rates of others.
struct Rates {
  explicit Rates(const Statistics& s) {
    const double seconds = engine::ToSeconds(s.makespan);
    const double busy = s.decode_s + s.prefill_s;
    output_tokens_per_s = Ratio(static_cast<double>(s.output_tokens), seconds);
    prompt_tokens_per_s = Ratio(static_cast<double>(s.prompt_tokens), seconds);
    requests_per_s =
        Ratio(static_cast<double>(s.count(Outcome::kFinished)), seconds);
    mean_rows = Ratio(static_cast<double>(s.decode_rows),
                      static_cast<double>(s.decode_steps));
    mean_pool_use = Ratio(s.page_seconds, busy);
    prefill_share = Ratio(s.prefill_s, busy);
    replay_share = Ratio(s.replay_s, busy);
  }
  double output_tokens_per_s = 0.0;
  double prompt_tokens_per_s = 0.0;
  double requests_per_s = 0.0;
  double mean_rows = 0.0;
  double mean_pool_use = 0.0;
  double prefill_share = 0.0;
  double replay_share = 0.0;  // of prefill_share
};

json SummaryJson(const Summary& s) {
  return {{"count", s.count}, {"mean", s.mean}, {"p50", s.p50},
          {"p95", s.p95},     {"p99", s.p99},   {"max", s.max}};
}

constexpr double Summary::*kPercentiles[] = {
    &Summary::mean, &Summary::p50, &Summary::p95, &Summary::p99, &Summary::max};
constexpr const char* kPercentileNames[] = {"mean", "p50", "p95", "p99", "max"};

class Table {
 public:
  explicit Table(const std::vector<NamedRun>& runs) : runs_(runs) {
    out_ = fmt::format("{:<26}", "");
    for (const NamedRun& run : runs) out_ += fmt::format("{:>16}", run.policy);
    out_ += '\n';
  }

  void Count(const char* name,
             const std::function<int64_t(const Statistics&)>& of) {
    out_ += fmt::format("{:<26}", name);
    for (const NamedRun& run : runs_) {
      out_ += fmt::format("{:>16}", of(run.statistics));
    }
    out_ += '\n';
  }
  void Number(const char* name,
              int decimals,
              const std::function<double(const Statistics&)>& of) {
    out_ += fmt::format("{:<26}", name);
    for (const NamedRun& run : runs_) {
      out_ += fmt::format("{:>16.{}f}", of(run.statistics), decimals);
    }
    out_ += '\n';
  }
  // Five rows, in milliseconds.
  void Durations(const char* name,
                 const std::function<Summary(const Statistics&)>& of) {
    std::vector<Summary> summaries;
    for (const NamedRun& run : runs_) summaries.push_back(of(run.statistics));
    for (size_t row = 0; row < std::size(kPercentiles); ++row) {
      const std::string title = row == 0 ? fmt::format("{}, ms", name) : "";
      out_ += fmt::format("{:<20} {:<5}", title, kPercentileNames[row]);
      for (const Summary& summary : summaries) {
        out_ += fmt::format("{:>16.2f}", summary.*kPercentiles[row] * 1e3);
      }
      out_ += '\n';
    }
  }
  const std::string& text() const { return out_; }

 private:
  const std::vector<NamedRun>& runs_;
  std::string out_;
};

}  // namespace

std::string RunTable(const std::vector<NamedRun>& runs) {
  Table table(runs);
  const auto outcome = [](Outcome wanted) {
    return [wanted](const Statistics& s) { return s.count(wanted); };
  };
  table.Count("requests", [](const Statistics& s) { return s.requests; });
  table.Count("  finished", outcome(Outcome::kFinished));
  table.Count("  refused: never fits", outcome(Outcome::kNeverFits));
  table.Count("  refused: queue full", outcome(Outcome::kQueueFull));
  table.Count("  refused: context", outcome(Outcome::kInvalid));
  table.Count("  past their deadline", outcome(Outcome::kDeadline));
  table.Count("preemptions", [](const Statistics& s) { return s.preemptions; });
  table.Number("seconds", 1, [](const Statistics& s) {
    return engine::ToSeconds(s.makespan);
  });
  table.Number("output tokens/s", 1, [](const Statistics& s) {
    return Rates(s).output_tokens_per_s;
  });
  table.Number("prompt tokens/s", 1, [](const Statistics& s) {
    return Rates(s).prompt_tokens_per_s;
  });
  table.Number("requests/s", 3,
               [](const Statistics& s) { return Rates(s).requests_per_s; });
  table.Number("batch of a step, mean", 1,
               [](const Statistics& s) { return Rates(s).mean_rows; });
  table.Count("batch of a step, max",
              [](const Statistics& s) { return s.max_rows; });
  table.Number("pool in use, mean %", 1, [](const Statistics& s) {
    return 100.0 * Rates(s).mean_pool_use;
  });
  table.Number("pool in use, max %", 1,
               [](const Statistics& s) { return 100.0 * s.max_pool_use; });
  table.Number("time in prefill %", 1, [](const Statistics& s) {
    return 100.0 * Rates(s).prefill_share;
  });
  table.Number("time in replays %", 1, [](const Statistics& s) {
    return 100.0 * Rates(s).replay_share;
  });
  table.Durations("in the queue", [](const Statistics& s) {
    return tools::Summarize(s.queue_s);
  });
  table.Durations("first token", [](const Statistics& s) {
    return tools::Summarize(s.first_token_s);
  });
  table.Durations("between tokens", [](const Statistics& s) {
    return s.inter_token_s.Summarize();
  });
  table.Durations("whole request", [](const Statistics& s) {
    return tools::Summarize(s.request_s);
  });
  return table.text();
}

json RunJson(const NamedRun& run) {
  const Statistics& s = run.statistics;
  const Rates rates(s);
  return {{"policy", run.policy},
          {"requests", s.requests},
          {"finished", s.count(Outcome::kFinished)},
          {"refused_never_fits", s.count(Outcome::kNeverFits)},
          {"refused_queue_full", s.count(Outcome::kQueueFull)},
          {"refused_context", s.count(Outcome::kInvalid)},
          {"past_deadline", s.count(Outcome::kDeadline)},
          {"preemptions", s.preemptions},
          {"seconds", engine::ToSeconds(s.makespan)},
          {"prompt_tokens", s.prompt_tokens},
          {"output_tokens", s.output_tokens},
          {"output_tokens_per_second", rates.output_tokens_per_s},
          {"prompt_tokens_per_second", rates.prompt_tokens_per_s},
          {"requests_per_second", rates.requests_per_s},
          {"steps", s.steps},
          {"mean_batch", rates.mean_rows},
          {"max_batch", s.max_rows},
          {"mean_pool_use", rates.mean_pool_use},
          {"max_pool_use", s.max_pool_use},
          {"prefill_share", rates.prefill_share},
          {"prefill_token_layers", s.prefill_token_layers},
          {"replayed_token_layers", s.replayed_token_layers},
          {"replay_share", rates.replay_share},
          {"queue_s", SummaryJson(tools::Summarize(s.queue_s))},
          {"first_token_s", SummaryJson(tools::Summarize(s.first_token_s))},
          {"inter_token_s", SummaryJson(s.inter_token_s.Summarize())},
          {"request_s", SummaryJson(tools::Summarize(s.request_s))}};
}

}  // namespace kf::sim
