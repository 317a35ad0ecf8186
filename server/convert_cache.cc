#include "server/convert_cache.h"

#include <cstdint>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/core/status.h"

namespace kf::server {
namespace {

namespace v1 = ::keyformer::v1;

// Which policies read an option (docs/keyformer.md, Sizes).
enum Readers : uint32_t {
  kFull = 1U << v1::CACHE_POLICY_FULL,
  kWindow = 1U << v1::CACHE_POLICY_WINDOW,
  kH2O = 1U << v1::CACHE_POLICY_H2O,
  kKeyformer = 1U << v1::CACHE_POLICY_KEYFORMER,
  kQuest = 1U << v1::CACHE_POLICY_QUEST,
  kScored = kH2O | kKeyformer,
  kEvicting = kWindow | kScored,
  kBudgeted = kEvicting | kQuest,
};

struct Option {
  const char* name;
  bool is_set;
  uint32_t readers;
};

absl::Status Invalid(const std::string& message) {
  return absl::InvalidArgumentError(message);
}

absl::Status CheckEnum(const char* field, int value, bool known) {
  if (known) return absl::OkStatus();
  return Invalid(absl::StrCat("cache.", field, ": ", value,
                              ", want a value that the proto lists"));
}

absl::Status CheckEnums(const v1::CacheOptions& p) {
  KF_RETURN_IF_ERROR(
      CheckEnum("policy", p.policy(), v1::CachePolicy_IsValid(p.policy())));
  KF_RETURN_IF_ERROR(
      CheckEnum("basis", p.basis(), v1::BudgetBasis_IsValid(p.basis())));
  KF_RETURN_IF_ERROR(
      CheckEnum("noise", p.noise(), v1::ScoreNoise_IsValid(p.noise())));
  KF_RETURN_IF_ERROR(CheckEnum("resample", p.resample(),
                               v1::NoiseResample_IsValid(p.resample())));
  KF_RETURN_IF_ERROR(
      CheckEnum("scope", p.scope(), v1::SelectionScope_IsValid(p.scope())));
  KF_RETURN_IF_ERROR(CheckEnum("positions", p.positions(),
                               v1::CachePositions_IsValid(p.positions())));
  return CheckEnum("score_norm", p.score_norm(),
                   v1::ScoreNorm_IsValid(p.score_norm()));
}

absl::Status CheckReaders(const v1::CacheOptions& p, v1::CachePolicy policy) {
  const Option options[] = {
      {"ratio", p.has_ratio(), kBudgeted},
      {"tokens", p.has_tokens(), kBudgeted},
      {"min_tokens", p.has_min_tokens(), kBudgeted},
      {"basis", p.basis() != 0, kBudgeted},
      {"recent_ratio", p.has_recent_ratio(), kScored},
      {"recent_tokens", p.has_recent_tokens(), kScored},
      {"sinks", p.has_sinks(), kWindow},
      {"tau_init", p.has_tau_init(), kKeyformer},
      {"tau_end", p.has_tau_end(), kKeyformer},
      {"noise", p.noise() != 0, kKeyformer},
      {"resample", p.resample() != 0, kKeyformer},
      {"noise_seed", p.has_noise_seed(), kKeyformer},
      {"scope", p.scope() != 0, kScored},
      {"positions", p.positions() != 0, kEvicting},
      {"score_queries", p.has_score_queries(), kScored},
      {"decode_scores", p.has_decode_scores(), kScored},
      {"score_norm", p.score_norm() != 0, kScored},
      {"full_layers", p.has_full_layers(), kQuest},
      {"layer_profile", !p.layer_profile().empty(), kEvicting},
      {"layer_weights", p.layer_weights_size() > 0, kEvicting},
  };
  for (const Option& option : options) {
    if (option.is_set && (option.readers & (1U << policy)) == 0) {
      return Invalid(absl::StrCat("cache.", option.name, ": set, but policy ",
                                  v1::CachePolicy_Name(policy),
                                  " does not read it"));
    }
  }
  if (p.has_tokens() && p.has_min_tokens()) {
    return Invalid("cache.min_tokens: set, but cache.tokens is the budget");
  }
  if (p.has_tokens() && p.basis() != 0) {
    return Invalid("cache.basis: set, but cache.tokens is the budget");
  }
  if (!p.layer_profile().empty() && p.layer_weights_size() > 0) {
    return Invalid("cache.layer_weights: set, but cache.layer_profile is too");
  }
  return absl::OkStatus();
}

absl::Status CheckOffered(v1::CachePolicy policy, const CacheOffer& offer) {
  std::string names;
  for (const engine::CachePolicy offered : offer.policies) {
    if (FromPolicy(offered) == policy) return absl::OkStatus();
    absl::StrAppend(&names, names.empty() ? "" : ", ",
                    v1::CachePolicy_Name(FromPolicy(offered)));
  }
  return Invalid(absl::StrCat("cache.policy: ", v1::CachePolicy_Name(policy),
                              ", this server offers ", names));
}

// Wire numbers and what they mean to the engine; 0, which means the default, is
// in no table.
template <typename Wire, typename Engine>
struct Pair {
  Wire wire;
  Engine engine;
};

constexpr Pair<v1::CachePolicy, engine::CachePolicy> kPolicies[] = {
    {v1::CACHE_POLICY_FULL, engine::CachePolicy::kFull},
    {v1::CACHE_POLICY_WINDOW, engine::CachePolicy::kWindow},
    {v1::CACHE_POLICY_H2O, engine::CachePolicy::kH2O},
    {v1::CACHE_POLICY_KEYFORMER, engine::CachePolicy::kKeyformer},
    {v1::CACHE_POLICY_QUEST, engine::CachePolicy::kQuest},
};
constexpr Pair<v1::BudgetBasis, engine::BudgetBasis> kBases[] = {
    {v1::BUDGET_BASIS_PROMPT, engine::BudgetBasis::kPrompt},
    {v1::BUDGET_BASIS_TOTAL, engine::BudgetBasis::kTotal},
};
constexpr Pair<v1::ScoreNoise, NoiseKind> kNoises[] = {
    {v1::SCORE_NOISE_GUMBEL, NoiseKind::kGumbel},
    {v1::SCORE_NOISE_GAUSSIAN, NoiseKind::kGaussian},
    {v1::SCORE_NOISE_CONSTANT, NoiseKind::kConstant},
    {v1::SCORE_NOISE_NONE, NoiseKind::kNone},
};
constexpr Pair<v1::NoiseResample, bool> kResampleOnce[] = {
    {v1::NOISE_RESAMPLE_STEP, false},
    {v1::NOISE_RESAMPLE_ONCE, true},
};
constexpr Pair<v1::SelectionScope, engine::SelectionScope> kScopes[] = {
    {v1::SELECTION_SCOPE_HEAD, engine::SelectionScope::kHead},
    {v1::SELECTION_SCOPE_LAYER, engine::SelectionScope::kLayer},
    {v1::SELECTION_SCOPE_MODEL, engine::SelectionScope::kModel},
};
constexpr Pair<v1::CachePositions, engine::CachePositions> kPositions[] = {
    {v1::CACHE_POSITIONS_ORIGINAL, engine::CachePositions::kOriginal},
    {v1::CACHE_POSITIONS_CACHE, engine::CachePositions::kCache},
};
constexpr Pair<v1::ScoreNorm, engine::ScoreNorm> kNorms[] = {
    {v1::SCORE_NORM_NONE, engine::ScoreNorm::kNone},
    {v1::SCORE_NORM_AGE, engine::ScoreNorm::kAge},
};

// Leaves `to` alone if `wire` is 0.
template <typename Wire, typename Engine, size_t kSize>
void Take(const Pair<Wire, Engine> (&table)[kSize], Wire wire, Engine* to) {
  for (const auto& pair : table) {
    if (pair.wire == wire) *to = pair.engine;
  }
}

template <typename Wire, typename Engine, size_t kSize>
Wire Find(const Pair<Wire, Engine> (&table)[kSize], Engine engine) {
  for (const auto& pair : table) {
    if (pair.engine == engine) return pair.wire;
  }
  return {};
}

// The server's defaults of what `policy` reads; what it does not read stays at
// the engine's own.
engine::CacheOptions DefaultsOf(v1::CachePolicy policy,
                                const engine::CacheOptions& defaults) {
  const auto reads = [policy](uint32_t readers) {
    return (readers & (1U << policy)) != 0;
  };
  engine::CacheOptions options;
  Take(kPolicies, policy, &options.policy);
  if (reads(kBudgeted)) {
    options.ratio = defaults.ratio;
    options.tokens = defaults.tokens;
    options.min_tokens = defaults.min_tokens;
    options.basis = defaults.basis;
  }
  if (reads(kScored)) {
    options.recent_ratio = defaults.recent_ratio;
    options.recent_tokens = defaults.recent_tokens;
    options.scope = defaults.scope;
    options.score_queries = defaults.score_queries;
    options.decode_scores = defaults.decode_scores;
    options.score_norm = defaults.score_norm;
  }
  if (reads(kEvicting)) {
    options.positions = defaults.positions;
    options.layer_weights = defaults.layer_weights;
  }
  if (reads(kKeyformer)) {
    options.tau_init = defaults.tau_init;
    options.tau_end = defaults.tau_end;
    options.noise = defaults.noise;
    options.resample_once = defaults.resample_once;
    options.noise_seed = defaults.noise_seed;
  }
  if (reads(kWindow)) options.sinks = defaults.sinks;
  if (reads(kQuest)) options.full_layers = defaults.full_layers;
  return options;
}

void TakeBudget(const v1::CacheOptions& p, engine::CacheOptions* options) {
  // A field that shapes a ratio asks for one, whatever the server's default.
  if (p.has_ratio() || p.has_min_tokens() || p.basis() != 0) {
    options->tokens.reset();
  }
  if (p.has_ratio()) options->ratio = p.ratio();
  if (p.has_tokens()) options->tokens = p.tokens();
  if (p.has_min_tokens()) options->min_tokens = p.min_tokens();
  Take(kBases, p.basis(), &options->basis);
  if (p.has_recent_ratio()) {
    options->recent_ratio = p.recent_ratio();
    options->recent_tokens.reset();
  }
  if (p.has_recent_tokens()) options->recent_tokens = p.recent_tokens();
}

std::string NamesOf(const engine::LayerProfiles& profiles) {
  std::string names;
  for (const auto& [name, weights] : profiles) {
    absl::StrAppend(&names, names.empty() ? "" : ", ", name);
  }
  return names;
}

absl::Status TakeWeights(const v1::CacheOptions& p,
                         const engine::LayerProfiles& profiles,
                         engine::CacheOptions* options) {
  // One set for the whole model has one size; a default profile gives way.
  if (options->scope == engine::SelectionScope::kModel) {
    options->layer_weights.clear();
  }
  if (p.layer_weights_size() > 0) {
    options->layer_weights.assign(p.layer_weights().begin(),
                                  p.layer_weights().end());
  }
  if (p.layer_profile().empty()) return absl::OkStatus();
  const auto found = profiles.find(p.layer_profile());
  if (found == profiles.end()) {
    return Invalid(absl::StrCat("cache.layer_profile: \"", p.layer_profile(),
                                "\", want one of: ", NamesOf(profiles)));
  }
  // The scope may be the server's default, so name the field that was set.
  if (!found->second.empty() &&
      options->scope == engine::SelectionScope::kModel) {
    return Invalid(absl::StrCat(
        "cache.layer_profile: \"", p.layer_profile(),
        "\", but cache.scope is MODEL, one set for all layers, want HEAD or "
        "LAYER"));
  }
  options->layer_weights = found->second;
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<engine::CacheOptions> ToCacheOptions(const v1::CacheOptions& p,
                                                    const CacheOffer& offer) {
  KF_RETURN_IF_ERROR(CheckEnums(p));
  const v1::CachePolicy policy = p.policy() == v1::CACHE_POLICY_UNSPECIFIED
                                     ? FromPolicy(offer.defaults.policy)
                                     : p.policy();
  KF_RETURN_IF_ERROR(CheckOffered(policy, offer));
  KF_RETURN_IF_ERROR(CheckReaders(p, policy));
  engine::CacheOptions options = DefaultsOf(policy, offer.defaults);
  TakeBudget(p, &options);
  if (p.has_sinks()) options.sinks = p.sinks();
  if (p.has_tau_init()) options.tau_init = p.tau_init();
  if (p.has_tau_end()) options.tau_end = p.tau_end();
  Take(kNoises, p.noise(), &options.noise);
  Take(kResampleOnce, p.resample(), &options.resample_once);
  Take(kScopes, p.scope(), &options.scope);
  Take(kPositions, p.positions(), &options.positions);
  if (p.has_score_queries()) options.score_queries = p.score_queries();
  if (p.has_decode_scores()) options.decode_scores = p.decode_scores();
  if (p.has_noise_seed()) options.noise_seed = p.noise_seed();
  Take(kNorms, p.score_norm(), &options.score_norm);
  if (p.has_full_layers()) options.full_layers = p.full_layers();
  KF_RETURN_IF_ERROR(TakeWeights(p, offer.profiles, &options));
  return options;
}

v1::CacheOptions FromCacheOptions(const engine::CacheOptions& options,
                                  const std::string& profile) {
  v1::CacheOptions p;
  p.set_policy(FromPolicy(options.policy));
  if (options.tokens.has_value()) {
    p.set_tokens(*options.tokens);
  } else {
    p.set_ratio(options.ratio);
    p.set_min_tokens(options.min_tokens);
    p.set_basis(Find(kBases, options.basis));
  }
  if (options.recent_tokens.has_value()) {
    p.set_recent_tokens(*options.recent_tokens);
  } else {
    p.set_recent_ratio(options.recent_ratio);
  }
  p.set_sinks(options.sinks);
  p.set_tau_init(options.tau_init);
  p.set_tau_end(options.tau_end);
  p.set_noise(Find(kNoises, options.noise));
  p.set_resample(Find(kResampleOnce, options.resample_once));
  p.set_scope(Find(kScopes, options.scope));
  p.set_positions(Find(kPositions, options.positions));
  p.set_score_queries(options.score_queries);
  p.set_decode_scores(options.decode_scores);
  p.set_score_norm(Find(kNorms, options.score_norm));
  p.set_full_layers(options.full_layers);
  p.set_layer_profile(profile);
  return p;
}

absl::StatusOr<CacheOffer> MakeCacheOffer(
    const engine::CacheOptions& defaults,
    const engine::LayerProfiles& profiles,
    const std::string& default_profile,
    std::vector<engine::CachePolicy> policies) {
  std::string name = default_profile;
  if (name == kAutoProfile) {
    name = std::string(profiles.contains(kCalibratedProfile)
                           ? kCalibratedProfile
                           : engine::kUniformProfile);
  }
  const auto found = profiles.find(name);
  if (found == profiles.end()) {
    return Invalid(absl::StrCat("--layer_profile: \"", default_profile,
                                "\", want one of: ", NamesOf(profiles)));
  }
  CacheOffer offer{.defaults = defaults,
                   .default_profile = name,
                   .profiles = profiles,
                   .policies = std::move(policies)};
  offer.defaults.layer_weights = found->second;
  return offer;
}

v1::CachePolicy FromPolicy(engine::CachePolicy policy) {
  return Find(kPolicies, policy);
}

}  // namespace kf::server
