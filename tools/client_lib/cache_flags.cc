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
          "Which tokens the cache keeps; full keeps all");
  AddValue(app, "--ratio", ratio,
           "Budget k as a share of the prompt, (0, 1]; 0.5 keeps half");
  AddValue(app, "--budget_tokens", budget_tokens, "Budget k in tokens");
  AddValue(app, "--recent_ratio", recent_ratio,
           "Share of the budget kept for the newest tokens, [0, 1]");
  AddValue(app, "--recent_tokens", recent_tokens,
           "The same as a number of tokens");
  AddValue(app, "--min_tokens", min_tokens,
           "With --ratio: never a smaller budget than this");
  AddEnum(app, "--basis", basis, BasisNames(),
          "What --ratio is a share of: the prompt, or prompt and answer");
  AddValue(app, "--tau_init", tau_init, "Score temperature at the start");
  AddValue(app, "--tau_end", tau_end, "Score temperature at the last token");
  AddEnum(app, "--noise", noise, NoiseNames(), "Noise added to the scores");
  AddEnum(app, "--resample", resample, ResampleNames(),
          "Draw the noise anew each step, or once");
  AddValue(app, "--score_queries", score_queries,
           "Score the prompt with its last N rows; 0: all");
  AddValue(app, "--decode_scores", decode_scores,
           "Whether generated tokens go on scoring (true or false)");
  app.add_option("--noise_seed", noise_seed, "Seed of the score noise")
      ->check(CLI::NonNegativeNumber)
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
}

bool CacheFlags::Empty() const {
  pb::CacheOptions cache;
  FillIn(cache);
  return cache.ByteSizeLong() == 0;
}

}  // namespace kf::tools
