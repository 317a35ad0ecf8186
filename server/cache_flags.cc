#include "server/cache_flags.h"

#include <cmath>
#include <map>

#include "absl/flags/flag.h"
#include "absl/strings/ascii.h"
#include "absl/strings/str_split.h"
#include "kernels/core/status.h"
#include "server/flag_values.h"

ABSL_FLAG(std::string,
          cache_preset,
          "server",
          "where the defaults below come from: server (as shown), or paper "
          "(the Keyformer paper's own setting); flags given by themselves win");
ABSL_FLAG(std::string,
          cache_policy,
          "keyformer",
          "default cache policy: full, window, h2o, keyformer, quest");
ABSL_FLAG(double,
          cache_ratio,
          0.5,
          "default budget as a share of the prompt, above 0 to 1");
ABSL_FLAG(uint32_t,
          cache_min_tokens,
          256,
          "a ratio never gives a smaller budget than this");
ABSL_FLAG(std::string,
          cache_basis,
          "prompt",
          "what the ratio is a share of: prompt, or total (prompt and answer)");
ABSL_FLAG(double,
          cache_recent_ratio,
          0.3,
          "h2o, keyformer: default share of the budget for the newest tokens, "
          "0 to 1");
ABSL_FLAG(uint32_t, cache_sinks, 4, "window: first tokens that stay");
ABSL_FLAG(double,
          cache_tau_init,
          1.0,
          "keyformer: the scores' temperature in the prompt, above 0");
ABSL_FLAG(double,
          cache_tau_end,
          2.0,
          "keyformer: their temperature at the last token, above 0");
ABSL_FLAG(std::string,
          cache_noise,
          "gumbel",
          "keyformer: noise on the scores: gumbel, gaussian, constant, none");
ABSL_FLAG(std::string,
          cache_resample,
          "step",
          "keyformer: noise drawn anew for every query (step), or once a key");
ABSL_FLAG(std::string,
          cache_scope,
          "head",
          "h2o, keyformer: who shares a kept set: head, layer, model");
ABSL_FLAG(std::string,
          cache_positions,
          "original",
          "a kept key's position: original, or cache (its rank there)");
ABSL_FLAG(uint32_t,
          cache_score_queries,
          256,
          "h2o, keyformer: last prompt rows that score; 0: all");
ABSL_FLAG(bool,
          cache_decode_scores,
          true,
          "h2o, keyformer: whether generated tokens score, too");
ABSL_FLAG(std::string,
          cache_score_norm,
          "none",
          "h2o, keyformer: none, or age (score per row that saw the key)");
ABSL_FLAG(uint32_t,
          cache_full_layers,
          2,
          "quest: first layers that read everything");
ABSL_FLAG(std::string,
          layer_profile,
          "auto",
          "default shares of the budget by layer: uniform, a profile of "
          "--layer_profiles, or auto: `calibrated` if there is one");
ABSL_FLAG(std::string,
          layer_profiles,
          "",
          "JSON file of layer profiles; default: MODEL.profiles.json, if there "
          "is one");
ABSL_FLAG(std::string,
          cache_policies,
          "full,window,h2o,keyformer,quest",
          "policies that a request may ask for");
ABSL_FLAG(uint32_t, max_samples, 64, "samples of one prompt, 1 to 4096");
ABSL_FLAG(uint32_t, max_beam_width, 16, "beams of one request, 1 to 4096");
ABSL_FLAG(std::string,
          max_report_bytes,
          "64MiB",
          "largest cache report of detail FULL, all of a request's sequences");

namespace kf::server {
namespace {

const std::map<std::string, engine::CachePolicy>& Policies() {
  static const auto* policies = new std::map<std::string, engine::CachePolicy>{
      {"full", engine::CachePolicy::kFull},
      {"window", engine::CachePolicy::kWindow},
      {"h2o", engine::CachePolicy::kH2O},
      {"keyformer", engine::CachePolicy::kKeyformer},
      {"quest", engine::CachePolicy::kQuest}};
  return *policies;
}

absl::Status FillSizes(engine::CacheOptions& cache) {
  cache.ratio = absl::GetFlag(FLAGS_cache_ratio);
  KF_RETURN_IF_ERROR(CheckRange("cache_ratio", cache.ratio,
                                cache.ratio > 0.0 && cache.ratio <= 1.0,
                                "above 0 to 1"));
  cache.min_tokens = absl::GetFlag(FLAGS_cache_min_tokens);
  KF_RETURN_IF_ERROR(CheckRange("cache_min_tokens", cache.min_tokens,
                                cache.min_tokens >= 1, ">= 1"));
  KF_ASSIGN_OR_RETURN(cache.basis,
                      Choose<engine::BudgetBasis>(
                          "cache_basis", absl::GetFlag(FLAGS_cache_basis),
                          {{"prompt", engine::BudgetBasis::kPrompt},
                           {"total", engine::BudgetBasis::kTotal}}));
  cache.recent_ratio = absl::GetFlag(FLAGS_cache_recent_ratio);
  KF_RETURN_IF_ERROR(CheckRange(
      "cache_recent_ratio", cache.recent_ratio,
      cache.recent_ratio >= 0.0 && cache.recent_ratio <= 1.0, "0 to 1"));
  cache.sinks = absl::GetFlag(FLAGS_cache_sinks);
  cache.full_layers = absl::GetFlag(FLAGS_cache_full_layers);
  return absl::OkStatus();
}

absl::Status CheckTau(const char* flag, double tau) {
  return CheckRange(flag, tau, std::isfinite(tau) && tau > 0.0,
                    "a finite number above 0");
}

absl::Status FillScores(engine::CacheOptions& cache) {
  cache.tau_init = absl::GetFlag(FLAGS_cache_tau_init);
  KF_RETURN_IF_ERROR(CheckTau("cache_tau_init", cache.tau_init));
  cache.tau_end = absl::GetFlag(FLAGS_cache_tau_end);
  KF_RETURN_IF_ERROR(CheckTau("cache_tau_end", cache.tau_end));
  KF_ASSIGN_OR_RETURN(
      cache.noise,
      Choose<NoiseKind>("cache_noise", absl::GetFlag(FLAGS_cache_noise),
                        {{"gumbel", NoiseKind::kGumbel},
                         {"gaussian", NoiseKind::kGaussian},
                         {"constant", NoiseKind::kConstant},
                         {"none", NoiseKind::kNone}}));
  KF_ASSIGN_OR_RETURN(
      cache.resample_once,
      Choose<bool>("cache_resample", absl::GetFlag(FLAGS_cache_resample),
                   {{"step", false}, {"once", true}}));
  KF_ASSIGN_OR_RETURN(cache.scope,
                      Choose<engine::SelectionScope>(
                          "cache_scope", absl::GetFlag(FLAGS_cache_scope),
                          {{"head", engine::SelectionScope::kHead},
                           {"layer", engine::SelectionScope::kLayer},
                           {"model", engine::SelectionScope::kModel}}));
  KF_ASSIGN_OR_RETURN(
      cache.positions,
      Choose<engine::CachePositions>(
          "cache_positions", absl::GetFlag(FLAGS_cache_positions),
          {{"original", engine::CachePositions::kOriginal},
           {"cache", engine::CachePositions::kCache}}));
  cache.score_queries = absl::GetFlag(FLAGS_cache_score_queries);
  cache.decode_scores = absl::GetFlag(FLAGS_cache_decode_scores);
  KF_ASSIGN_OR_RETURN(
      cache.score_norm,
      Choose<engine::ScoreNorm>("cache_score_norm",
                                absl::GetFlag(FLAGS_cache_score_norm),
                                {{"none", engine::ScoreNorm::kNone},
                                 {"age", engine::ScoreNorm::kAge}}));
  return absl::OkStatus();
}

absl::Status CheckCount(const char* flag, uint32_t value) {
  constexpr uint32_t kMost = engine::kMaxBatch;
  return CheckRange(flag, value, value >= 1 && value <= kMost, "1 to 4096");
}

}  // namespace

const std::vector<const char*>& CacheFlagNames() {
  static const auto* names = new std::vector<const char*>{
      "cache_preset",     "cache_policy",        "cache_ratio",
      "cache_min_tokens", "cache_basis",         "cache_recent_ratio",
      "cache_sinks",      "cache_tau_init",      "cache_tau_end",
      "cache_noise",      "cache_resample",      "cache_scope",
      "cache_positions",  "cache_score_queries", "cache_decode_scores",
      "cache_score_norm", "cache_full_layers",   "layer_profile",
      "layer_profiles"};
  return *names;
}

const std::vector<const char*>& LimitFlagNames() {
  static const auto* names = new std::vector<const char*>{
      "cache_policies", "max_samples", "max_beam_width", "max_report_bytes"};
  return *names;
}

absl::StatusOr<std::vector<std::pair<const char*, const char*>>>
CachePresetFlags() {
  using Flags = std::vector<std::pair<const char*, const char*>>;
  // The paper's, whatever the server's defaults may come to be.
  const Flags paper = {
      {"cache_policy", "keyformer"},   {"cache_ratio", "0.5"},
      {"cache_min_tokens", "1"},       {"cache_basis", "prompt"},
      {"cache_recent_ratio", "0.3"},   {"cache_tau_init", "1"},
      {"cache_tau_end", "2"},          {"cache_noise", "gumbel"},
      {"cache_resample", "step"},      {"cache_scope", "head"},
      {"cache_positions", "original"}, {"cache_score_queries", "0"},
      {"cache_decode_scores", "true"}, {"cache_score_norm", "none"},
      {"layer_profile", "uniform"}};
  return Choose<Flags>("cache_preset", absl::GetFlag(FLAGS_cache_preset),
                       {{"paper", paper}, {"server", {}}});
}

absl::Status FillCache(engine::EngineOptions& options) {
  options.layer_profiles_path = absl::GetFlag(FLAGS_layer_profiles);
  engine::CacheOptions& cache = options.default_cache;
  KF_ASSIGN_OR_RETURN(
      cache.policy,
      Choose<engine::CachePolicy>(
          "cache_policy", absl::GetFlag(FLAGS_cache_policy), Policies()));
  KF_RETURN_IF_ERROR(FillSizes(cache));
  return FillScores(cache);
}

absl::Status FillRules(const engine::CacheOptions& cache, RequestRules& rules) {
  rules.max_samples = absl::GetFlag(FLAGS_max_samples);
  KF_RETURN_IF_ERROR(CheckCount("max_samples", rules.max_samples));
  rules.max_beam_width = absl::GetFlag(FLAGS_max_beam_width);
  KF_RETURN_IF_ERROR(CheckCount("max_beam_width", rules.max_beam_width));
  KF_ASSIGN_OR_RETURN(
      rules.max_report_bytes,
      ParseBytes("max_report_bytes", absl::GetFlag(FLAGS_max_report_bytes)));
  rules.layer_profile = absl::GetFlag(FLAGS_layer_profile);
  rules.policies.clear();
  const std::string list = absl::GetFlag(FLAGS_cache_policies);
  bool has_default = false;
  for (const absl::string_view part : absl::StrSplit(list, ',')) {
    const std::string word(absl::StripAsciiWhitespace(part));
    KF_ASSIGN_OR_RETURN(
        const engine::CachePolicy policy,
        Choose<engine::CachePolicy>("cache_policies", word, Policies()));
    rules.policies.push_back(policy);
    has_default = has_default || policy == cache.policy;
  }
  if (has_default) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "--cache_policies: \"", list, "\", want the default among them (",
      absl::GetFlag(FLAGS_cache_policy), ")"));
}

}  // namespace kf::server
