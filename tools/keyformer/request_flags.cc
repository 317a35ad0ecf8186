#include "tools/keyformer/request_flags.h"

#include <charconv>

#include "kernels/core/status.h"
#include "tools/client_lib/text_input.h"

namespace kf::tools {
namespace {

namespace pb = ::keyformer::v1;

// "42=-1.5" into the map; later entries win.
absl::Status ParseBias(const std::string& text, pb::SamplingOptions& sampling) {
  const char* const end = text.data() + text.size();
  uint32_t id = 0;
  const auto number = std::from_chars(text.data(), end, id);
  double bias = 0.0;
  if (number.ec == std::errc() && number.ptr != end && *number.ptr == '=') {
    const auto value = std::from_chars(number.ptr + 1, end, bias);
    if (value.ec == std::errc() && value.ptr == end) {
      (*sampling.mutable_logit_bias())[id] = bias;
      return absl::OkStatus();
    }
  }
  return absl::InvalidArgumentError(
      absl::StrCat("--logit_bias: \"", text, "\", want ID=BIAS as in 42=-1.5"));
}

}  // namespace

void RequestFlags::AddTo(CLI::App& app) {
  AddSamplingTo(app);
  AddStoppingTo(app);
  cache.AddTo(app);
  AddOutputTo(app);
}

void RequestFlags::AddSamplingTo(CLI::App& app) {
  const auto add = [&app](const std::string& flag, auto& value,
                          const std::string& help) {
    return app.add_option(flag, value, help)->group("Sampling");
  };
  add("--temperature", temperature, "0: always the likeliest token (default)");
  add("--top_k", top_k, "Choose among the K likeliest tokens; 0: off");
  add("--top_p", top_p, "Choose among tokens that make up this probability");
  add("--min_p", min_p, "Drop tokens below this share of the likeliest one");
  add("--typical_p", typical_p, "Locally typical sampling, as top_p");
  add("--repetition_penalty", repetition_penalty,
      "Divides the logits of tokens seen so far; 1: off");
  add("--presence_penalty", presence_penalty,
      "Subtracted from the logit of each generated token");
  add("--frequency_penalty", frequency_penalty,
      "The same, times how often it was generated");
  add("--seed", seed, "Same request and seed, same answer")
      ->check(CLI::NonNegativeNumber);
  add("--logit_bias", logit_bias, "ID=BIAS, added to a token's logit; repeats")
      ->allow_extra_args(false);
}

void RequestFlags::AddStoppingTo(CLI::App& app) {
  const auto add = [&app](const std::string& flag, auto& value,
                          const std::string& help) {
    return app.add_option(flag, value, help)->group("Stopping");
  };
  add("--max_new_tokens", max_new_tokens, "Stop after this many tokens");
  add("--min_new_tokens", min_new_tokens, "No end of text before this many");
  add("--stop", stop, "Stop at this string; repeats")->allow_extra_args(false);
  add("--stop_token_id", stop_token_ids, "Stop at this token id; repeats")
      ->allow_extra_args(false);
  add("--time_limit_ms", time_limit_ms, "Stop this long after arrival");
  app.add_flag("--include_stop", include_stop, "Keep the stop string")
      ->group("Stopping");
  app.add_flag("--ignore_eos", ignore_eos, "Go on after the end-of-text token")
      ->group("Stopping");
}

void RequestFlags::AddOutputTo(CLI::App& app) {
  app.add_flag("--logprobs", logprobs, "Log-probability of each token")
      ->group("Output");
  app.add_option("--top_logprobs", top_logprobs,
                 "Also the N likeliest tokens at each place")
      ->group("Output");
  app.add_flag("--prompt_logprobs", prompt_logprobs,
               "Also of the prompt's tokens")
      ->group("Output");
  app.add_flag("--echo_prompt", echo_prompt, "The prompt precedes the answer")
      ->group("Output");
  app.add_flag("--keep_special_tokens", keep_special_tokens,
               "Show control tokens in the text")
      ->group("Output");
  app.add_option("--priority", priority, "Larger is served first")
      ->group("Output");
  app.add_option("--request_id", request_id, "Echoed, and in the server's log")
      ->group("Output");
}

void RequestFlags::AddSeveralTo(CLI::App& app) {
  const auto add = [&app](const std::string& flag, auto& value,
                          const std::string& help) {
    return app.add_option(flag, value, help)->group("Several answers");
  };
  add("--n", n, "So many samples of one prompt, which is read once");
  add("--beam_width", beam_width,
      "Beam search: the likeliest answers by the sum of their logprobs, "
      "best first; goes with no sampling flag");
  add("--length_penalty", length_penalty,
      "A beam's score is logprob / length ^ this (1); above 1 favours long "
      "answers");
  app.add_flag("--early_stopping", early_stopping,
               "End at the first --beam_width finished beams")
      ->group("Several answers");
  app.add_option("--cache_report", cache_report,
                 "What the cache kept, in --json. summary: the share of heads "
                 "that hold each prompt token; full: positions and scores")
      ->check(CLI::IsMember({"summary", "full"}))
      ->group("Output");
}

absl::Status RequestFlags::FillInBeam(pb::SamplingOptions& sampling) const {
  if (n) sampling.set_n(*n);
  if (!beam_width) {
    if (!length_penalty && !early_stopping) return absl::OkStatus();
    return absl::InvalidArgumentError(
        "--length_penalty and --early_stopping: only with --beam_width");
  }
  pb::BeamOptions& beam = *sampling.mutable_beam();
  beam.set_width(*beam_width);
  if (length_penalty) beam.set_length_penalty(*length_penalty);
  beam.set_early_stopping(early_stopping);
  return absl::OkStatus();
}

absl::Status RequestFlags::FillInSampling(pb::SamplingOptions& sampling) const {
  if (temperature) sampling.set_temperature(*temperature);
  if (top_k) sampling.set_top_k(*top_k);
  if (top_p) sampling.set_top_p(*top_p);
  if (min_p) sampling.set_min_p(*min_p);
  if (typical_p) sampling.set_typical_p(*typical_p);
  if (repetition_penalty) sampling.set_repetition_penalty(*repetition_penalty);
  if (presence_penalty) sampling.set_presence_penalty(*presence_penalty);
  if (frequency_penalty) sampling.set_frequency_penalty(*frequency_penalty);
  if (seed) sampling.set_seed(*seed);
  for (const std::string& text : logit_bias) {
    KF_RETURN_IF_ERROR(ParseBias(text, sampling));
  }
  return absl::OkStatus();
}

absl::Status RequestFlags::FillInStopping(pb::StoppingOptions& stopping) const {
  if (max_new_tokens) stopping.set_max_new_tokens(*max_new_tokens);
  if (min_new_tokens) stopping.set_min_new_tokens(*min_new_tokens);
  for (const std::string& text : stop) {
    KF_RETURN_IF_ERROR(CheckUtf8(text, "--stop"));
    stopping.add_stop(text);
  }
  for (const uint32_t id : stop_token_ids) stopping.add_stop_token_ids(id);
  stopping.set_include_stop(include_stop);
  stopping.set_ignore_eos(ignore_eos);
  if (time_limit_ms) stopping.set_time_limit_ms(*time_limit_ms);
  return absl::OkStatus();
}

absl::Status RequestFlags::FillIn(pb::GenerateRequest& request) const {
  KF_RETURN_IF_ERROR(CheckUtf8(request_id, "--request_id"));
  request.set_request_id(request_id);
  if (priority) request.set_priority(*priority);
  KF_RETURN_IF_ERROR(FillInSampling(*request.mutable_sampling()));
  KF_RETURN_IF_ERROR(FillInBeam(*request.mutable_sampling()));
  KF_RETURN_IF_ERROR(FillInStopping(*request.mutable_stopping()));
  if (!cache.Empty()) cache.FillIn(*request.mutable_cache());
  pb::OutputOptions& output = *request.mutable_output();
  output.set_logprobs(logprobs);
  if (top_logprobs) output.set_top_logprobs(*top_logprobs);
  output.set_prompt_logprobs(prompt_logprobs);
  output.set_echo_prompt(echo_prompt);
  output.set_keep_special_tokens(keep_special_tokens);
  if (cache_report == "summary") {
    output.set_cache_report(pb::CACHE_REPORT_DETAIL_SUMMARY);
  } else if (cache_report == "full") {
    output.set_cache_report(pb::CACHE_REPORT_DETAIL_FULL);
  }
  return absl::OkStatus();
}

}  // namespace kf::tools
