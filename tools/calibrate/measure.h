// Runs probes on a server under a cache setting and tells what they lost.
#pragma once

#include <cstddef>
#include <functional>
#include <vector>

#include "absl/status/statusor.h"
#include "tools/calibrate/probe.h"
#include "tools/client_lib/client.h"

namespace kf::tools {

// Over the probes of a kind; forced tokens without each probe's first, which
// comes from the prompt's own logits.
struct Losses {
  double fact_nll = 0.0;   // nats per token of the facts' answers
  double text_nll = 0.0;   // nats per token of the texts
  size_t facts = 0;        // asked for
  size_t facts_right = 0;  // every token of the answer the most probable one
  double evicted = 0.0;    // mean share of the fed tokens that was evicted
};

// The cache options of a probe with n prompt tokens and T forced ones.
using CacheFor = std::function<pb::CacheOptions(size_t n, size_t forced)>;

class Measurer {
 public:
  // `client` and `probes` outlive this; `streams` >= 1 requests run at once.
  Measurer(Client& client, const std::vector<Probe>& probes, size_t streams);

  // Blocks. The first error of a request ends it.
  absl::StatusOr<Losses> Run(const CacheFor& cache);

 private:
  Client& client_;
  const std::vector<Probe>& probes_;
  const size_t streams_;
};

}  // namespace kf::tools
