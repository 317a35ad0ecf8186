// Command-line flags of CacheOptions, for every tool that sends a request.
#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "keyformer/v1/generation.pb.h"

namespace kf::tools {

// What was given on the command line; the rest stays unset, so that the
// server's defaults hold and its checks see only what a person asked for.
struct CacheFlags {
  std::string policy;
  std::optional<double> ratio;
  std::optional<uint32_t> budget_tokens;
  std::optional<double> recent_ratio;
  std::optional<uint32_t> recent_tokens;
  std::optional<uint32_t> min_tokens;
  std::string basis;
  std::optional<double> tau_init;
  std::optional<double> tau_end;
  std::string noise;
  std::string resample;
  std::optional<uint32_t> score_queries;
  std::optional<bool> decode_scores;
  std::optional<uint64_t> noise_seed;
  std::optional<uint32_t> sinks;
  std::string scope;
  std::string positions;
  std::string score_norm;
  std::optional<uint32_t> full_layers;
  std::string layer_profile;
  std::vector<double> layer_weights;

  // Adds the flags to `app`, which must not outlive this object. Ranges are
  // left to the server, whose message names field, value and limit.
  void AddTo(CLI::App& app);

  // Leaves `cache` untouched where no flag was given.
  void FillIn(keyformer::v1::CacheOptions& cache) const;

  bool Empty() const;
};

}  // namespace kf::tools
