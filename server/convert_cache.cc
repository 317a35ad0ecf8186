#include "server/convert_cache.h"

#include <cstdint>
#include <string>

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
  kBudgeted = kWindow | kScored | kQuest,
};

struct Option {
  const char* name;
  bool is_set;
  uint32_t readers;
};

absl::Status Invalid(const std::string& message) {
  return absl::InvalidArgumentError(message);
}

absl::Status NotBuilt(const char* field, const std::string& value) {
  return absl::UnimplementedError(
      absl::StrCat("cache.", field, ": ", value, " is not built yet"));
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
      {"positions", p.positions() != 0, kWindow | kScored},
      {"score_queries", p.has_score_queries(), kScored},
      {"decode_scores", p.has_decode_scores(), kScored},
      {"score_norm", p.score_norm() != 0, kScored},
      {"full_layers", p.has_full_layers(), kQuest},
      {"layer_profile", !p.layer_profile().empty(), kWindow | kScored},
      {"layer_weights", p.layer_weights_size() > 0, kWindow | kScored},
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
  return absl::OkStatus();
}

// After CheckReaders, so that an option of the wrong policy says so whether or
// not it is built.
absl::Status CheckBuilt(const v1::CacheOptions& p) {
  if (p.scope() == v1::SELECTION_SCOPE_LAYER ||
      p.scope() == v1::SELECTION_SCOPE_MODEL) {
    return NotBuilt("scope", v1::SelectionScope_Name(p.scope()));
  }
  if (p.positions() == v1::CACHE_POSITIONS_CACHE) {
    return NotBuilt("positions", v1::CachePositions_Name(p.positions()));
  }
  if (p.score_norm() == v1::SCORE_NORM_AGE) {
    return NotBuilt("score_norm", v1::ScoreNorm_Name(p.score_norm()));
  }
  if (!p.layer_profile().empty() && p.layer_profile() != "uniform") {
    return NotBuilt("layer_profile",
                    absl::StrCat("\"", p.layer_profile(), "\""));
  }
  if (p.layer_weights_size() > 0) {
    return NotBuilt("layer_weights",
                    absl::StrCat(p.layer_weights_size(), " weights"));
  }
  return absl::OkStatus();
}

NoiseKind ToNoise(v1::ScoreNoise noise) {
  switch (noise) {
    case v1::SCORE_NOISE_GAUSSIAN:
      return NoiseKind::kGaussian;
    case v1::SCORE_NOISE_CONSTANT:
      return NoiseKind::kConstant;
    case v1::SCORE_NOISE_NONE:
      return NoiseKind::kNone;
    default:
      return NoiseKind::kGumbel;
  }
}

v1::ScoreNoise FromNoise(NoiseKind noise) {
  switch (noise) {
    case NoiseKind::kGaussian:
      return v1::SCORE_NOISE_GAUSSIAN;
    case NoiseKind::kConstant:
      return v1::SCORE_NOISE_CONSTANT;
    case NoiseKind::kNone:
      return v1::SCORE_NOISE_NONE;
    case NoiseKind::kGumbel:
      break;
  }
  return v1::SCORE_NOISE_GUMBEL;
}

v1::CachePolicy FromPolicy(engine::CachePolicy policy) {
  switch (policy) {
    case engine::CachePolicy::kFull:
      return v1::CACHE_POLICY_FULL;
    case engine::CachePolicy::kH2O:
      return v1::CACHE_POLICY_H2O;
    case engine::CachePolicy::kWindow:
      return v1::CACHE_POLICY_WINDOW;
    case engine::CachePolicy::kQuest:
      return v1::CACHE_POLICY_QUEST;
    case engine::CachePolicy::kKeyformer:
      break;
  }
  return v1::CACHE_POLICY_KEYFORMER;
}

absl::StatusOr<engine::CachePolicy> ToPolicy(v1::CachePolicy policy) {
  switch (policy) {
    case v1::CACHE_POLICY_FULL:
      return engine::CachePolicy::kFull;
    case v1::CACHE_POLICY_H2O:
      return engine::CachePolicy::kH2O;
    case v1::CACHE_POLICY_KEYFORMER:
      return engine::CachePolicy::kKeyformer;
    default:
      return NotBuilt("policy", v1::CachePolicy_Name(policy));
  }
}

}  // namespace

absl::StatusOr<engine::CacheOptions> ToCacheOptions(
    const v1::CacheOptions& p, const engine::CacheOptions& defaults) {
  KF_RETURN_IF_ERROR(CheckEnums(p));
  const v1::CachePolicy policy = p.policy() == v1::CACHE_POLICY_UNSPECIFIED
                                     ? FromPolicy(defaults.policy)
                                     : p.policy();
  engine::CacheOptions options = defaults;
  KF_ASSIGN_OR_RETURN(options.policy, ToPolicy(policy));
  KF_RETURN_IF_ERROR(CheckReaders(p, policy));
  KF_RETURN_IF_ERROR(CheckBuilt(p));

  if (p.has_ratio()) {
    options.ratio = p.ratio();
    options.tokens.reset();
  }
  if (p.has_tokens()) options.tokens = p.tokens();
  if (p.has_recent_ratio()) {
    options.recent_ratio = p.recent_ratio();
    options.recent_tokens.reset();
  }
  if (p.has_recent_tokens()) options.recent_tokens = p.recent_tokens();
  if (p.has_min_tokens()) options.min_tokens = p.min_tokens();
  if (p.basis() != 0) {
    options.basis = p.basis() == v1::BUDGET_BASIS_TOTAL
                        ? engine::BudgetBasis::kTotal
                        : engine::BudgetBasis::kPrompt;
  }
  if (p.has_tau_init()) options.tau_init = p.tau_init();
  if (p.has_tau_end()) options.tau_end = p.tau_end();
  if (p.noise() != 0) options.noise = ToNoise(p.noise());
  if (p.resample() != 0) {
    options.resample_once = p.resample() == v1::NOISE_RESAMPLE_ONCE;
  }
  if (p.has_score_queries()) options.score_queries = p.score_queries();
  if (p.has_decode_scores()) options.decode_scores = p.decode_scores();
  if (p.has_noise_seed()) options.noise_seed = p.noise_seed();
  return options;
}

v1::CacheOptions FromCacheOptions(const engine::CacheOptions& options) {
  v1::CacheOptions p;
  p.set_policy(FromPolicy(options.policy));
  if (options.tokens.has_value()) {
    p.set_tokens(*options.tokens);
  } else {
    p.set_ratio(options.ratio);
    p.set_min_tokens(options.min_tokens);
    p.set_basis(options.basis == engine::BudgetBasis::kTotal
                    ? v1::BUDGET_BASIS_TOTAL
                    : v1::BUDGET_BASIS_PROMPT);
  }
  if (options.recent_tokens.has_value()) {
    p.set_recent_tokens(*options.recent_tokens);
  } else {
    p.set_recent_ratio(options.recent_ratio);
  }
  p.set_tau_init(options.tau_init);
  p.set_tau_end(options.tau_end);
  p.set_noise(FromNoise(options.noise));
  p.set_resample(options.resample_once ? v1::NOISE_RESAMPLE_ONCE
                                       : v1::NOISE_RESAMPLE_STEP);
  p.set_scope(v1::SELECTION_SCOPE_HEAD);
  p.set_positions(v1::CACHE_POSITIONS_ORIGINAL);
  p.set_score_queries(options.score_queries);
  p.set_decode_scores(options.decode_scores);
  p.set_score_norm(v1::SCORE_NORM_NONE);
  p.set_layer_profile("uniform");
  return p;
}

}  // namespace kf::server
