// The search for a layer profile, in three passes:
// 1. which layers cannot be cut: one after another alone is cut to a small
//    share; the costliest then keep everything, as many as is best in total;
// 2. where the rest is best spent: with those kept whole and all others at the
//    total, one group of layers after another is spared the cut;
// 3. the rest is spread by what pass 2 gained, flatly and steeply, with three
//    floors, and the best of all that was measured is taken; all layers alike
//    is among it.
#pragma once

#include <cstddef>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "tools/calibrate/measure.h"

namespace kf::tools {

struct SearchOptions {
  size_t layers = 0;      // of the model
  double ratio = 0.5;     // in (0, 1); the total budget, of the prompt
  double share = 0.2;     // in (0, 1); of the prompt, where a layer is cut
  double least = 0.15;    // in (0, ratio]; no layer keeps less in the end
  size_t group = 4;       // layers that pass 2 spares together, >= 1
  size_t most_whole = 2;  // at most so many layers are kept whole
  double text_loss =
      0.01;                // nats per token of a text more than with everything
  pb::CacheOptions cache;  // the policy and what is no budget
};

struct Candidate {
  std::string how;              // "all layers alike", ...
  std::vector<double> weights;  // [layers], mean 1
  Losses losses;
};

struct SearchResult {
  Losses full;
  std::vector<Losses> cut;       // [layers], pass 1
  std::vector<double> gains;     // [layers], pass 2: score gained per layer
  std::vector<Candidate> tried;  // at the ratio; the first is all layers alike
  size_t best = 0;               // of `tried`
};

// What passes 1 and 2 order by, lower is better: nats per token of a fact and
// of a text together.
double Score(const Losses& losses);

// Measures one setting; `what` says which, for the progress.
using MeasureFn = std::function<absl::StatusOr<Losses>(const std::string& what,
                                                       const CacheFor& cache)>;

// The setting in which nothing is evicted.
CacheFor Everything();

// A profile's weights, [layers], at the options' ratio. `options` outlives it.
CacheFor AtTheTotal(const SearchOptions& options, std::vector<double> weights);

// How many settings a search measures at most.
size_t CountSettings(const SearchOptions& options);

absl::StatusOr<SearchResult> Search(const SearchOptions& options,
                                    const MeasureFn& measure);

}  // namespace kf::tools
