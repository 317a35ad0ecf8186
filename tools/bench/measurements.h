// From the records of single requests to the numbers of a run. Times are
// seconds since the start of the measured part.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "tools/client_lib/percentiles.h"

namespace kf::tools {

// When tokens of one answer came.
struct Arrival {
  double at_s = 0.0;
  uint32_t tokens = 0;
};

struct RequestRecord {
  double start_s = 0.0;  // when it was due: waiting for a free stream counts
  double end_s = 0.0;
  std::vector<Arrival> arrivals;  // chunks with tokens, in order
  std::string code = "OK";        // of the RPC, or ERROR (a failed row)
  uint32_t prompt_tokens = 0;
  uint32_t cache_budget_tokens = 0;
  uint32_t evicted_tokens = 0;
};

// The stretch of the run where the most streams were decoding at once: the
// speed free of ramp-up, prefill of the first and the tail of the last.
struct SteadyState {
  size_t streams = 0;
  double seconds = 0.0;
  double tokens_per_second = 0.0;
};

struct Measurements {
  size_t requests = 0;
  size_t succeeded = 0;
  std::map<std::string, size_t> errors;  // by code; no OK
  double seconds = 0.0;                  // first start to last end
  uint64_t output_tokens = 0;
  uint64_t prompt_tokens = 0;  // of requests whose first token came
  double output_tokens_per_second = 0.0;
  double prompt_tokens_per_second = 0.0;
  double requests_per_second = 0.0;
  uint64_t evicted_tokens = 0;
  double mean_budget_tokens = 0.0;  // over succeeded requests
  Summary first_token_ms;           // of succeeded requests, as the next three
  Summary inter_token_ms;           // a message's tokens share its gap
  double longest_gap_ms = 0.0;      // between two messages of an answer
  Summary request_ms;
  SteadyState steady;
};

// Between two messages of an answer, of the gaps that are open at some moment
// from `begin_s` to `end_s`; 0: there is none.
double LongestGapSeconds(const RequestRecord& record,
                         double begin_s,
                         double end_s);

// A request decodes from its first arrival to its last.
SteadyState FindSteadyState(const std::vector<RequestRecord>& records);

// The median seconds between two tokens of an answer, by how many tokens it had
// before: of [0, bin), [bin, 2 bin) and so on. A last bin that is not half full
// is left out. bin >= 1.
std::vector<double> SecondsPerToken(const RequestRecord& record, uint32_t bin);

Measurements Measure(const std::vector<RequestRecord>& records);

}  // namespace kf::tools
