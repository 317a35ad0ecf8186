#include "tools/sim/trace.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <numbers>
#include <random>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/core/status.h"

namespace kf::sim {
namespace {

constexpr double kMaxSeconds = 1e9;
constexpr double kMaxTraceTokens = 1 << 24;

enum Column : size_t {
  kArrival,
  kPrompt,
  kOutput,
  kPolicy,
  kRatio,
  kPriority,
  kColumns
};
constexpr std::array<std::string_view, kColumns> kColumnNames = {
    "arrival_s", "prompt_tokens", "output_tokens",
    "policy",    "ratio",         "priority"};

std::string_view Trim(std::string_view text) {
  constexpr std::string_view kBlanks = " \t\r";
  const size_t first = text.find_first_not_of(kBlanks);
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(kBlanks) - first + 1);
}

std::vector<std::string_view> SplitFields(std::string_view line) {
  std::vector<std::string_view> fields;
  for (;;) {
    const size_t comma = line.find(',');
    fields.push_back(Trim(line.substr(0, comma)));
    if (comma == std::string_view::npos) return fields;
    line.remove_prefix(comma + 1);
  }
}

absl::Status TraceFault(size_t line, const std::string& what) {
  return absl::InvalidArgumentError(
      absl::StrCat("trace line ", line, ": ", what));
}

// Reads lines by the columns that the first one has named.
class TraceReader {
 public:
  absl::Status ReadHeader(std::string_view line, size_t number) {
    for (const std::string_view name : SplitFields(line)) {
      const auto* found =
          std::find(kColumnNames.begin(), kColumnNames.end(), name);
      if (found == kColumnNames.end()) {
        return TraceFault(number, absl::StrCat("column \"", ToAbsl(name),
                                               "\": unknown, want arrival_s, "
                                               "prompt_tokens, output_tokens, "
                                               "policy, ratio or priority"));
      }
      const auto column = static_cast<Column>(found - kColumnNames.begin());
      if (Has(column)) {
        return TraceFault(number,
                          absl::StrCat("column ", ToAbsl(name), ": twice"));
      }
      columns_.push_back(column);
    }
    for (const Column column : {kArrival, kPrompt, kOutput}) {
      if (Has(column)) continue;
      return TraceFault(
          number,
          absl::StrCat("column ", ToAbsl(kColumnNames[column]), ": missing"));
    }
    if (Has(kRatio) && !Has(kPolicy)) {
      return TraceFault(number, "column ratio: wants a column policy");
    }
    return absl::OkStatus();
  }

  absl::StatusOr<TraceRequest> ReadLine(std::string_view line, size_t number) {
    const auto fields = SplitFields(line);
    if (fields.size() != columns_.size()) {
      return TraceFault(number, absl::StrCat(fields.size(), " fields, want ",
                                             columns_.size()));
    }
    std::array<std::string_view, kColumns> values;
    for (size_t i = 0; i < fields.size(); ++i) values[columns_[i]] = fields[i];
    TraceRequest request;
    KF_ASSIGN_OR_RETURN(request.arrival_s,
                        Number(values, kArrival, number, 0.0, kMaxSeconds));
    KF_ASSIGN_OR_RETURN(request.prompt_tokens,
                        Whole(values, kPrompt, number, 1.0, kMaxTraceTokens));
    KF_ASSIGN_OR_RETURN(request.output_tokens,
                        Whole(values, kOutput, number, 1.0, kMaxTraceTokens));
    if (!values[kPriority].empty()) {
      KF_ASSIGN_OR_RETURN(request.priority, Whole(values, kPriority, number,
                                                  -2147483648.0, 2147483647.0));
    }
    if (!values[kPolicy].empty()) {
      std::string text(values[kPolicy]);
      if (!values[kRatio].empty()) {
        text += ':';
        text += values[kRatio];
      }
      auto policy = ParsePolicy(text);
      if (!policy.ok()) {
        return TraceFault(number, std::string(policy.status().message()));
      }
      request.policy = *policy;
    } else if (!values[kRatio].empty()) {
      return TraceFault(number, absl::StrCat("ratio: ", ToAbsl(values[kRatio]),
                                             ", but policy is empty"));
    }
    return request;
  }

  bool has_header() const { return !columns_.empty(); }

 private:
  using Values = std::array<std::string_view, kColumns>;

  bool Has(Column column) const {
    return std::find(columns_.begin(), columns_.end(), column) !=
           columns_.end();
  }
  static absl::StatusOr<double> Number(const Values& values,
                                       Column column,
                                       size_t line,
                                       double low,
                                       double high) {
    const auto number = ParseNumber(values[column]);
    const auto name = ToAbsl(kColumnNames[column]);
    if (!number.ok()) {
      return TraceFault(line,
                        absl::StrCat(name, ": ", number.status().message()));
    }
    if (*number >= low && *number <= high) return *number;
    return TraceFault(line, absl::StrCat(name, ": ", ToAbsl(values[column]),
                                         ", want ", low, " to ", high));
  }
  static absl::StatusOr<int32_t> Whole(const Values& values,
                                       Column column,
                                       size_t line,
                                       double low,
                                       double high) {
    KF_ASSIGN_OR_RETURN(const double number,
                        Number(values, column, line, low, high));
    if (number != std::floor(number)) {
      return TraceFault(
          line, absl::StrCat(ToAbsl(kColumnNames[column]), ": ",
                             ToAbsl(values[column]), ", want a whole number"));
    }
    return static_cast<int32_t>(number);
  }

  std::vector<Column> columns_;
};

// Uniform in (0, 1]. std's distributions differ between libraries; this one
// does not.
double OpenUnit(std::mt19937_64& random) {
  return static_cast<double>((random() >> 11) + 1) * 0x1.0p-53;
}

// Box-Muller.
double NormalDraw(std::mt19937_64& random) {
  const double radius = std::sqrt(-2.0 * std::log(OpenUnit(random)));
  return radius * std::cos(2.0 * std::numbers::pi * OpenUnit(random));
}

int32_t DrawLength(std::mt19937_64& random,
                   int32_t median,
                   const SyntheticTrace& options) {
  if (options.spread == 0.0) return std::min(median, options.max_tokens);
  const double length =
      std::round(median * std::exp(options.spread * NormalDraw(random)));
  return static_cast<int32_t>(
      std::clamp(length, 1.0, static_cast<double>(options.max_tokens)));
}

}  // namespace

absl::StatusOr<std::vector<TraceRequest>> ParseTrace(std::string_view csv) {
  TraceReader reader;
  std::vector<TraceRequest> trace;
  size_t number = 0;
  while (!csv.empty()) {
    ++number;
    const size_t end = csv.find('\n');
    const std::string_view line = Trim(csv.substr(0, end));
    csv = end == std::string_view::npos ? "" : csv.substr(end + 1);
    if (line.empty() || line.front() == '#') continue;
    if (!reader.has_header()) {
      KF_RETURN_IF_ERROR(reader.ReadHeader(line, number));
      continue;
    }
    KF_ASSIGN_OR_RETURN(const TraceRequest request,
                        reader.ReadLine(line, number));
    if (!trace.empty() && request.arrival_s < trace.back().arrival_s) {
      return TraceFault(number,
                        absl::StrCat("arrival_s: ", request.arrival_s,
                                     ", want at least the line above's ",
                                     trace.back().arrival_s));
    }
    trace.push_back(request);
  }
  if (trace.empty()) return absl::InvalidArgumentError("trace: no request");
  return trace;
}

std::string FormatTrace(const std::vector<TraceRequest>& trace) {
  std::string out =
      "arrival_s,prompt_tokens,output_tokens,policy,ratio,priority\n";
  for (const TraceRequest& r : trace) {
    // Enough digits for a microsecond in 1e9 s.
    char arrival[40];
    std::snprintf(arrival, sizeof(arrival), "%.6f", r.arrival_s);
    absl::StrAppend(&out, arrival, ",", r.prompt_tokens, ",", r.output_tokens,
                    ",");
    if (r.policy) {
      const std::string text = ToString(*r.policy);
      const size_t colon = text.find(':');
      absl::StrAppend(&out, text.substr(0, colon), ",");
      if (colon != std::string::npos) {
        absl::StrAppend(&out, text.substr(colon + 1));
      }
    } else {
      out += ',';
    }
    absl::StrAppend(&out, ",", r.priority, "\n");
  }
  return out;
}

std::vector<TraceRequest> DrawTrace(const SyntheticTrace& options) {
  std::mt19937_64 random(options.seed);
  std::vector<TraceRequest> trace;
  trace.reserve(options.requests);
  double at = 0.0;
  for (size_t i = 0; i < options.requests; ++i) {
    TraceRequest request{.arrival_s = at};
    request.prompt_tokens = DrawLength(random, options.prompt_tokens, options);
    request.output_tokens = DrawLength(random, options.output_tokens, options);
    if (options.rate > 0.0) {
      const double gap = -std::log(OpenUnit(random)) / options.rate;
      at = std::min(at + gap, kMaxSeconds);
    }
    trace.push_back(request);
  }
  return trace;
}

}  // namespace kf::sim
