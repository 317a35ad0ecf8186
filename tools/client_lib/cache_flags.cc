#include "tools/client_lib/cache_flags.h"

#include <map>

namespace kf::tools {
namespace {

namespace pb = ::keyformer::v1;

template <typename Enum>
using Names = std::map<std::string, Enum>;

const Names<pb::CachePolicy>& PolicyNames() {
  static const auto* names =
      new Names<pb::CachePolicy>{{"full", pb::CACHE_POLICY_FULL},
                                 {"window", pb::CACHE_POLICY_WINDOW},
                                 {"h2o", pb::CACHE_POLICY_H2O},
                                 {"keyformer", pb::CACHE_POLICY_KEYFORMER},
                                 {"quest", pb::CACHE_POLICY_QUEST}};
  return *names;
}

const Names<pb::BudgetBasis>& BasisNames() {
  static const auto* names = new Names<pb::BudgetBasis>{
      {"prompt", pb::BUDGET_BASIS_PROMPT}, {"total", pb::BUDGET_BASIS_TOTAL}};
  return *names;
}

const Names<pb::ScoreNoise>& NoiseNames() {
  static const auto* names =
      new Names<pb::ScoreNoise>{{"gumbel", pb::SCORE_NOISE_GUMBEL},
                                {"gaussian", pb::SCORE_NOISE_GAUSSIAN},
                                {"constant", pb::SCORE_NOISE_CONSTANT},
                                {"none", pb::SCORE_NOISE_NONE}};
  return *names;
}

const Names<pb::NoiseResample>& ResampleNames() {
  static const auto* names = new Names<pb::NoiseResample>{
      {"step", pb::NOISE_RESAMPLE_STEP}, {"once", pb::NOISE_RESAMPLE_ONCE}};
  return *names;
}

const Names<pb::SelectionScope>& ScopeNames() {
  static const auto* names =
      new Names<pb::SelectionScope>{{"head", pb::SELECTION_SCOPE_HEAD},
                                    {"layer", pb::SELECTION_SCOPE_LAYER},
                                    {"model", pb::SELECTION_SCOPE_MODEL}};
  return *names;
}

const Names<pb::CachePositions>& PositionsNames() {
  static const auto* names =
      new Names<pb::CachePositions>{{"original", pb::CACHE_POSITIONS_ORIGINAL},
                                    {"cache", pb::CACHE_POSITIONS_CACHE}};
  return *names;
}

const Names<pb::ScoreNorm>& NormNames() {
  static const auto* names = new Names<pb::ScoreNorm>{
      {"none", pb::SCORE_NORM_NONE}, {"age", pb::SCORE_NORM_AGE}};
  return *names;
}

template <typename Enum>
CLI::Option* AddEnum(CLI::App& app,
                     const std::string& flag,
                     std::string& value,
                     const Names<Enum>& names,
                     const std::string& help) {
  return app.add_option(flag, value, help)
      ->check(CLI::IsMember(names))
      ->group("KV cache");
}

template <typename T>
void AddValue(CLI::App& app,
              const std::string& flag,
              std::optional<T>& value,
              const std::string& help) {
  app.add_option(flag, value, help)->group("KV cache");
}

}  // namespace

void CacheFlags::AddTo(CLI::App& app) {
  AddEnum(app, "--policy", policy, PolicyNames(),
          "Which tokens the cache keeps. full: all. window: the first and the "
          "last ones. h2o: the last ones and the best by attention. keyformer: "
          "the same with noise and a temperature on the scores. quest: all, "
          "but a step reads only some (saves reads, not memory)");
  AddValue(app, "--ratio", ratio,
           "Budget k as a share of the prompt, (0, 1]; 0.5 keeps half");
  AddValue(app, "--budget_tokens", budget_tokens, "Budget k in tokens");
  AddValue(app, "--min_tokens", min_tokens,
           "With --ratio: never a smaller budget than this; 1 as in the paper");
  AddEnum(app, "--basis", basis, BasisNames(),
          "What --ratio is a share of: the prompt, or prompt and answer");
  AddValue(app, "--recent_ratio", recent_ratio,
           "h2o, keyformer: share of the budget for the newest tokens, [0, 1]");
  AddValue(app, "--recent_tokens", recent_tokens,
           "The same as a number of tokens; 0: none are safe");
  AddValue(app, "--sinks", sinks, "window: how many of the first tokens stay");
  AddEnum(app, "--scope", scope, ScopeNames(),
          "h2o, keyformer: who shares one kept set: each head its own, a "
          "layer's heads, or the whole model");
  AddEnum(app, "--positions", positions, PositionsNames(),
          "A kept key's position: its own, or its rank in the cache");
  AddValue(app, "--score_queries", score_queries,
           "h2o, keyformer: score the prompt with its last N rows; 0: all");
  AddValue(app, "--decode_scores", decode_scores,
           "h2o, keyformer: whether generated tokens go on scoring (true, "
           "false)");
  AddEnum(app, "--score_norm", score_norm, NormNames(),
          "h2o, keyformer: age divides a score by the rows that saw the key, "
          "so that old tokens have no advantage");
  AddValue(app, "--tau_init", tau_init,
           "keyformer: the scores' temperature in the prompt");
  AddValue(app, "--tau_end", tau_end,
           "keyformer: their temperature at the last token");
  AddEnum(app, "--noise", noise, NoiseNames(),
          "keyformer: noise added to the scores");
  AddEnum(app, "--resample", resample, ResampleNames(),
          "keyformer: draw the noise anew each step, or once");
  app.add_option("--noise_seed", noise_seed,
                 "keyformer: seed of the noise; else that of the sampling")
      ->check(CLI::NonNegativeNumber)
      ->group("KV cache");
  AddValue(app, "--full_layers", full_layers,
           "quest: the first N layers read everything");
  app.add_option("--layer_profile", layer_profile,
                 "Named shares of the budget, by layer (keyformer info lists "
                 "them); uniform: all layers alike")
      ->group("KV cache");
  app.add_option("--layer_weights", layer_weights,
                 "Instead: a number for each layer, mean 1, as in 0.5,1.5")
      ->delimiter(',')
      ->group("KV cache");
}

void CacheFlags::FillIn(pb::CacheOptions& cache) const {
  if (!policy.empty()) cache.set_policy(PolicyNames().at(policy));
  if (ratio) cache.set_ratio(*ratio);
  if (budget_tokens) cache.set_tokens(*budget_tokens);
  if (recent_ratio) cache.set_recent_ratio(*recent_ratio);
  if (recent_tokens) cache.set_recent_tokens(*recent_tokens);
  if (min_tokens) cache.set_min_tokens(*min_tokens);
  if (!basis.empty()) cache.set_basis(BasisNames().at(basis));
  if (tau_init) cache.set_tau_init(*tau_init);
  if (tau_end) cache.set_tau_end(*tau_end);
  if (!noise.empty()) cache.set_noise(NoiseNames().at(noise));
  if (!resample.empty()) cache.set_resample(ResampleNames().at(resample));
  if (score_queries) cache.set_score_queries(*score_queries);
  if (decode_scores) cache.set_decode_scores(*decode_scores);
  if (noise_seed) cache.set_noise_seed(*noise_seed);
  if (sinks) cache.set_sinks(*sinks);
  if (!scope.empty()) cache.set_scope(ScopeNames().at(scope));
  if (!positions.empty()) cache.set_positions(PositionsNames().at(positions));
  if (!score_norm.empty()) cache.set_score_norm(NormNames().at(score_norm));
  if (full_layers) cache.set_full_layers(*full_layers);
  if (!layer_profile.empty()) cache.set_layer_profile(layer_profile);
  cache.mutable_layer_weights()->Add(layer_weights.begin(),
                                     layer_weights.end());
}

bool CacheFlags::Empty() const {
  pb::CacheOptions cache;
  FillIn(cache);
  return cache.ByteSizeLong() == 0;
}

}  // namespace kf::tools
