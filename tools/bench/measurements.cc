#include "tools/bench/measurements.h"

#include <algorithm>
#include <utility>

namespace kf::tools {
namespace {

struct Interval {
  double begin_s = 0.0;  // open
  double end_s = 0.0;    // closed
};

// Where `records` decode at their highest number at once, ascending.
std::pair<size_t, std::vector<Interval>> PeakIntervals(
    const std::vector<RequestRecord>& records) {
  std::vector<std::pair<double, int>> events;
  for (const RequestRecord& record : records) {
    if (record.arrivals.size() < 2) continue;
    events.emplace_back(record.arrivals.front().at_s, +1);
    events.emplace_back(record.arrivals.back().at_s, -1);
  }
  // At one time ends sort before begins, so that a hand-over adds no level.
  std::sort(events.begin(), events.end());
  int level = 0;
  int peak = 0;
  std::vector<Interval> intervals;
  for (size_t i = 0; i + 1 < events.size(); ++i) {
    level += events[i].second;
    const Interval interval{events[i].first, events[i + 1].first};
    if (interval.end_s <= interval.begin_s || level < peak) continue;
    if (level > peak) intervals.clear();
    peak = level;
    intervals.push_back(interval);
  }
  return {static_cast<size_t>(peak), std::move(intervals)};
}

bool Contains(const std::vector<Interval>& intervals, double at_s) {
  const auto after = std::lower_bound(
      intervals.begin(), intervals.end(), at_s,
      [](const Interval& interval, double at) { return interval.end_s < at; });
  return after != intervals.end() && after->begin_s < at_s;
}

void AddInterTokenMs(const RequestRecord& record, std::vector<double>& out) {
  for (size_t i = 1; i < record.arrivals.size(); ++i) {
    const Arrival& arrival = record.arrivals[i];
    const double gap_ms =
        (arrival.at_s - record.arrivals[i - 1].at_s) * 1e3 / arrival.tokens;
    out.insert(out.end(), arrival.tokens, gap_ms);
  }
}

}  // namespace

SteadyState FindSteadyState(const std::vector<RequestRecord>& records) {
  const auto [peak, intervals] = PeakIntervals(records);
  SteadyState steady{.streams = peak, .seconds = 0.0, .tokens_per_second = 0.0};
  for (const Interval& interval : intervals) {
    steady.seconds += interval.end_s - interval.begin_s;
  }
  if (steady.seconds <= 0.0) return steady;
  uint64_t tokens = 0;
  for (const RequestRecord& record : records) {
    for (size_t i = 1; i < record.arrivals.size(); ++i) {
      const Arrival& arrival = record.arrivals[i];
      if (Contains(intervals, arrival.at_s)) tokens += arrival.tokens;
    }
  }
  steady.tokens_per_second = static_cast<double>(tokens) / steady.seconds;
  return steady;
}

std::vector<double> SecondsPerToken(const RequestRecord& record, uint32_t bin) {
  std::vector<std::vector<double>> gaps;
  uint64_t tokens = 0;
  for (size_t i = 0; i < record.arrivals.size(); ++i) {
    const Arrival& arrival = record.arrivals[i];
    const size_t place = tokens / bin;
    tokens += arrival.tokens;
    if (i == 0) continue;
    gaps.resize(std::max(gaps.size(), place + 1));
    gaps[place].push_back((arrival.at_s - record.arrivals[i - 1].at_s) /
                          arrival.tokens);
  }
  std::vector<double> medians;
  for (std::vector<double>& bin_gaps : gaps) {
    const bool last = &bin_gaps == &gaps.back();
    if (last && 2 * (tokens % bin) < bin && tokens % bin != 0) break;
    medians.push_back(Summarize(std::move(bin_gaps)).p50);
  }
  return medians;
}

double LongestGapSeconds(const RequestRecord& record,
                         double begin_s,
                         double end_s) {
  double longest = 0.0;
  for (size_t i = 1; i < record.arrivals.size(); ++i) {
    const double from_s = record.arrivals[i - 1].at_s;
    const double to_s = record.arrivals[i].at_s;
    if (to_s < begin_s || from_s > end_s) continue;
    longest = std::max(longest, to_s - from_s);
  }
  return longest;
}

Measurements Measure(const std::vector<RequestRecord>& records) {
  Measurements out;
  out.requests = records.size();
  if (records.empty()) return out;
  std::vector<double> first_ms;
  std::vector<double> between_ms;
  std::vector<double> request_ms;
  double begin_s = records.front().start_s;
  double end_s = records.front().end_s;
  uint64_t budgets = 0;
  for (const RequestRecord& record : records) {
    begin_s = std::min(begin_s, record.start_s);
    end_s = std::max(end_s, record.end_s);
    for (const Arrival& arrival : record.arrivals) {
      out.output_tokens += arrival.tokens;
    }
    if (!record.arrivals.empty()) out.prompt_tokens += record.prompt_tokens;
    out.evicted_tokens += record.evicted_tokens;
    if (record.code != "OK") {
      ++out.errors[record.code];
      continue;
    }
    ++out.succeeded;
    budgets += record.cache_budget_tokens;
    request_ms.push_back((record.end_s - record.start_s) * 1e3);
    if (record.arrivals.empty()) continue;
    first_ms.push_back((record.arrivals.front().at_s - record.start_s) * 1e3);
    AddInterTokenMs(record, between_ms);
    out.longest_gap_ms =
        std::max(out.longest_gap_ms,
                 1e3 * LongestGapSeconds(record, record.start_s, record.end_s));
  }
  out.seconds = end_s - begin_s;
  const auto rate = [&out](double amount) {
    return out.seconds > 0.0 ? amount / out.seconds : 0.0;
  };
  out.output_tokens_per_second = rate(static_cast<double>(out.output_tokens));
  out.prompt_tokens_per_second = rate(static_cast<double>(out.prompt_tokens));
  out.requests_per_second = rate(static_cast<double>(out.succeeded));
  if (out.succeeded > 0) {
    out.mean_budget_tokens =
        static_cast<double>(budgets) / static_cast<double>(out.succeeded);
  }
  out.first_token_ms = Summarize(std::move(first_ms));
  out.inter_token_ms = Summarize(std::move(between_ms));
  out.request_ms = Summarize(std::move(request_ms));
  out.steady = FindSteadyState(records);
  return out;
}

}  // namespace kf::tools
