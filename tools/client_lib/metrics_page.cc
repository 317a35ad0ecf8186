#include "tools/client_lib/metrics_page.h"

#include <cstdlib>

namespace kf::tools {
namespace {

constexpr std::string_view kPrefix = "keyformer_";

}  // namespace

MetricsPage::MetricsPage(std::string_view text) {
  while (!text.empty()) {
    const size_t end = text.find('\n');
    const std::string_view line = text.substr(0, end);
    text = end == std::string_view::npos ? "" : text.substr(end + 1);
    const size_t space = line.rfind(' ');
    if (line.substr(0, kPrefix.size()) != kPrefix ||
        space == std::string_view::npos ||
        line.find("_bucket{") != std::string_view::npos) {
      continue;
    }
    const std::string value(line.substr(space + 1));
    values_.emplace(line.substr(kPrefix.size(), space - kPrefix.size()),
                    std::strtod(value.c_str(), nullptr));
  }
}

double MetricsPage::Value(const std::string& series) const {
  const auto found = values_.find(series);
  return found == values_.end() ? 0.0 : found->second;
}

double MetricsPage::Sum(const std::string& name) const {
  double sum = Value(name);
  const std::string labelled = name + "{";
  for (auto it = values_.lower_bound(labelled);
       it != values_.end() && it->first.rfind(labelled, 0) == 0; ++it) {
    sum += it->second;
  }
  return sum;
}

RequestCounts MetricsPage::Requests() const {
  return {.received = Value("requests_received_total"),
          .succeeded = Sum("request_success_total"),
          .failed = Sum("request_failed_total"),
          .cancelled = Value("request_cancelled_total"),
          .rejected = Sum("request_rejected_total"),
          .running = Value("num_requests_running"),
          .waiting = Value("num_requests_waiting")};
}

}  // namespace kf::tools
