// What a server did between two scrapes of its metrics. Free of gRPC.
#pragma once

#include <cstdint>
#include <vector>

#include "tools/client_lib/metrics_page.h"

namespace kf::tools {

// Of a process, /proc/PID/status.
struct ProcessMemory {
  uint64_t resident_bytes = 0;  // VmRSS
  uint64_t peak_bytes = 0;      // VmHWM
};

struct Sample {
  double at_s = 0.0;  // since the load's start
  MetricsPage page;
  ProcessMemory memory;
};

// Seconds are of the engine thread, but for wall_s.
struct Window {
  double wall_s = 0.0;
  double steps = 0.0;  // that decoded
  double rows = 0.0;   // tokens fed by them
  double decode_s = 0.0;
  double attention_s = 0.0;  // of decode_s, as the next two
  double products_s = 0.0;
  double sampling_s = 0.0;
  double slices = 0.0;  // steps that worked on prompts, or replays
  double prefill_s = 0.0;
  double replay_s = 0.0;
  double other_s = 0.0;
  double generated = 0.0;  // tokens
  double preempted = 0.0;

  // 0 where nothing has run.
  double mean_batch() const { return Ratio(rows, steps); }
  double step_s() const { return Ratio(decode_s, steps); }
  double slice_s() const { return Ratio(prefill_s + replay_s, slices); }
  // Prefill taken out.
  double decode_tokens_per_second() const { return Ratio(rows, decode_s); }
  double tokens_per_second() const { return Ratio(generated, wall_s); }

 private:
  static double Ratio(double a, double b) { return b > 0.0 ? a / b : 0.0; }
};

Window Between(const Sample& begin, const Sample& end);

// From the first request's end to the last sample: the batch is filled, and
// refilled as requests end. Empty where none has ended.
Window Steady(const std::vector<Sample>& samples);

// Samples on which not all requests that were received are accounted for.
size_t CountMismatches(const std::vector<Sample>& samples);

}  // namespace kf::tools
