// A page of metrics in Prometheus' text format, as numbers.
#pragma once

#include <map>
#include <string>
#include <string_view>

namespace kf::tools {

// Where all requests are that a server has received.
struct RequestCounts {
  double received = 0.0;
  double succeeded = 0.0;
  double failed = 0.0;
  double cancelled = 0.0;
  double rejected = 0.0;
  double running = 0.0;
  double waiting = 0.0;

  double ended() const { return succeeded + failed + cancelled + rejected; }
  double accounted_for() const { return ended() + running + waiting; }
};

class MetricsPage {
 public:
  MetricsPage() = default;  // empty
  // Lines that are no samples are skipped, what stands before the page too; and
  // histograms' buckets, so that many pages can be kept.
  explicit MetricsPage(std::string_view text);

  // Of a series as it stands on the page, without the prefix keyformer_:
  // `request_failed_total{code="INTERNAL"}`. 0 if it is not there.
  double Value(const std::string& series) const;
  // Over all labels of a metric.
  double Sum(const std::string& name) const;
  RequestCounts Requests() const;
  bool empty() const { return values_.empty(); }

 private:
  std::map<std::string, double> values_;  // by series
};

}  // namespace kf::tools
