// Command-line flags of a GenerateRequest, but for its input.
#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "keyformer/v1/generation.pb.h"
#include "tools/client_lib/cache_flags.h"

namespace kf::tools {

// Unset flags leave their field unset: the server's default holds, and its
// checks see only what a person asked for.
struct RequestFlags {
  // Sampling.
  std::optional<double> temperature;
  std::optional<uint32_t> top_k;
  std::optional<double> top_p;
  std::optional<double> min_p;
  std::optional<double> typical_p;
  std::optional<double> repetition_penalty;
  std::optional<double> presence_penalty;
  std::optional<double> frequency_penalty;
  std::optional<uint64_t> seed;
  std::vector<std::string> logit_bias;  // "ID=BIAS"
  // Stopping.
  std::optional<uint32_t> max_new_tokens;
  std::optional<uint32_t> min_new_tokens;
  std::vector<std::string> stop;
  std::vector<uint32_t> stop_token_ids;
  bool include_stop = false;
  bool ignore_eos = false;
  std::optional<double> time_limit_ms;
  CacheFlags cache;
  // Several sequences (AddSeveralTo).
  std::optional<uint32_t> n;
  std::optional<uint32_t> beam_width;
  std::optional<double> length_penalty;
  bool early_stopping = false;
  std::string cache_report;  // "", "summary", "full"
  // Output and the rest.
  bool logprobs = false;
  std::optional<uint32_t> top_logprobs;
  bool prompt_logprobs = false;
  bool echo_prompt = false;
  bool keep_special_tokens = false;
  std::optional<int32_t> priority;
  std::string request_id;

  // `app` must not outlive this object.
  void AddTo(CLI::App& app);
  // Samples, beams and the report of the cache.
  void AddSeveralTo(CLI::App& app);

  // kInvalidArgument: a flag that the parser could not judge is wrong.
  absl::Status FillIn(keyformer::v1::GenerateRequest& request) const;

 private:
  void AddSamplingTo(CLI::App& app);
  void AddStoppingTo(CLI::App& app);
  void AddOutputTo(CLI::App& app);
  absl::Status FillInBeam(keyformer::v1::SamplingOptions& sampling) const;
  absl::Status FillInSampling(keyformer::v1::SamplingOptions& sampling) const;
  absl::Status FillInStopping(keyformer::v1::StoppingOptions& stopping) const;
};

}  // namespace kf::tools
