#include "engine/request_validation.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <string_view>

#include "engine/sequence_rules.h"
#include "kernels/core/status.h"

namespace kf::engine {
namespace {

// docs/sampling.md and docs/keyformer.md state these limits. Wide enough for
// every use; narrow enough that no sum or quotient of them overflows.
constexpr double kMaxPenalty = 1e9;
constexpr double kMinRepetition = 1e-3;
constexpr double kMaxRepetition = 1e3;
constexpr double kMaxTimeLimitMs = 1e12;  // fits int64 nanoseconds

template <typename T>
absl::Status Refuse(std::string_view field, T value, std::string_view want) {
  return absl::InvalidArgumentError(
      absl::StrCat(ToAbsl(field), ": ", value, ", want ", ToAbsl(want)));
}

// low <= value <= high; a NaN fails every comparison and so is refused.
absl::Status CheckReal(std::string_view field,
                       double value,
                       double low,
                       double high,
                       std::string_view want) {
  if (value >= low && value <= high) return absl::OkStatus();
  return Refuse(field, value, want);
}

absl::Status CheckIds(std::string_view field,
                      const std::vector<TokenId>& ids,
                      int32_t vocabulary) {
  for (size_t i = 0; i < ids.size(); ++i) {
    if (ids[i] >= 0 && ids[i] < vocabulary) continue;
    return Refuse(absl::StrCat(ToAbsl(field), "[", i, "]"), ids[i],
                  absl::StrCat("a token id from 0 to ", vocabulary - 1));
  }
  return absl::OkStatus();
}

absl::Status CheckCount(std::string_view field,
                        uint64_t value,
                        uint64_t low,
                        uint64_t high,
                        std::string_view unit) {
  if (value >= low && value <= high) return absl::OkStatus();
  return Refuse(field, absl::StrCat(value, ToAbsl(unit)),
                low == 0 ? absl::StrCat("at most ", high)
                         : absl::StrCat(low, " to ", high));
}

absl::Status CheckSampling(const SamplingParams& s,
                           const RequestLimits& limits) {
  if (!std::isfinite(s.temperature) || s.temperature < 0.0) {
    return Refuse("sampling.temperature", s.temperature,
                  "a finite number >= 0");
  }
  KF_RETURN_IF_ERROR(CheckReal("sampling.top_p", s.top_p, 0.0, 1.0,
                               "0 <= top_p <= 1 (0: off)"));
  KF_RETURN_IF_ERROR(CheckReal("sampling.min_p", s.min_p, 0.0, 1.0,
                               "0 <= min_p <= 1 (0: off)"));
  KF_RETURN_IF_ERROR(CheckReal("sampling.typical_p", s.typical_p, 0.0, 1.0,
                               "0 <= typical_p <= 1 (0: off)"));
  if (s.repetition_penalty != 0.0) {
    KF_RETURN_IF_ERROR(CheckReal("sampling.repetition_penalty",
                                 s.repetition_penalty, kMinRepetition,
                                 kMaxRepetition, "0 (off), or 0.001 to 1000"));
  }
  KF_RETURN_IF_ERROR(CheckReal("sampling.presence_penalty", s.presence_penalty,
                               -kMaxPenalty, kMaxPenalty, "-1e9 to 1e9"));
  KF_RETURN_IF_ERROR(CheckReal("sampling.frequency_penalty",
                               s.frequency_penalty, -kMaxPenalty, kMaxPenalty,
                               "-1e9 to 1e9"));
  KF_RETURN_IF_ERROR(CheckCount("sampling.logit_bias", s.logit_bias.size(), 0,
                                limits.max_logit_bias, " entries"));
  for (const auto& [id, bias] : s.logit_bias) {
    const std::string field = absl::StrCat("sampling.logit_bias[", id, "]");
    if (id < 0 || id >= limits.vocabulary) {
      return absl::InvalidArgumentError(
          absl::StrCat(field, ": no such token, want an id from 0 to ",
                       limits.vocabulary - 1));
    }
    KF_RETURN_IF_ERROR(
        CheckReal(field, bias, -kMaxPenalty, kMaxPenalty, "-1e9 to 1e9"));
  }
  return absl::OkStatus();
}

absl::Status CheckStopping(const StoppingParams& s,
                           const RequestLimits& limits) {
  KF_RETURN_IF_ERROR(CheckCount("stopping.stop", s.stop.size(), 0,
                                limits.max_stops, " strings"));
  for (size_t i = 0; i < s.stop.size(); ++i) {
    KF_RETURN_IF_ERROR(CheckCount(absl::StrCat("stopping.stop[", i, "]"),
                                  s.stop[i].size(), 1, limits.max_stop_bytes,
                                  " bytes"));
  }
  KF_RETURN_IF_ERROR(CheckCount("stopping.stop_token_ids",
                                s.stop_token_ids.size(), 0, limits.max_stops,
                                " ids"));
  KF_RETURN_IF_ERROR(
      CheckIds("stopping.stop_token_ids", s.stop_token_ids, limits.vocabulary));
  return CheckReal("stopping.time_limit_ms", s.time_limit_ms, 0.0,
                   kMaxTimeLimitMs, "0 <= time_limit_ms <= 1e12 (0: off)");
}

absl::Status CheckTau(std::string_view field, double value) {
  if (std::isfinite(value) && value > 0.0) return absl::OkStatus();
  return Refuse(field, value, "a finite number > 0");
}

absl::Status CheckCache(const CacheOptions& c) {
  if (!(c.ratio > 0.0 && c.ratio <= 1.0)) {
    return Refuse("cache.ratio", c.ratio, "0 < ratio <= 1");
  }
  if (c.tokens == 0U) return Refuse("cache.tokens", 0, "at least 1");
  KF_RETURN_IF_ERROR(CheckReal("cache.recent_ratio", c.recent_ratio, 0.0, 1.0,
                               "0 <= recent_ratio <= 1"));
  if (c.min_tokens == 0) return Refuse("cache.min_tokens", 0, "at least 1");
  KF_RETURN_IF_ERROR(CheckTau("cache.tau_init", c.tau_init));
  return CheckTau("cache.tau_end", c.tau_end);
}

absl::Status CheckOutput(const Request& request, const RequestLimits& limits) {
  const OutputParams& o = request.output;
  KF_RETURN_IF_ERROR(CheckCount("output.top_logprobs", o.top_logprobs, 0,
                                limits.max_top_logprobs, ""));
  const bool has_logprobs =
      o.logprobs || o.prompt_logprobs || !request.forced_tokens.empty();
  if (o.top_logprobs > 0 && !has_logprobs) {
    return Refuse("output.top_logprobs", o.top_logprobs,
                  "0 unless logprobs or prompt_logprobs is set");
  }
  return absl::OkStatus();
}

// T before the context cuts it.
absl::StatusOr<uint64_t> RequestedNewTokens(const Request& request,
                                            const RequestLimits& limits) {
  const StoppingParams& s = request.stopping;
  uint64_t wanted = s.max_new_tokens.value_or(limits.default_max_new_tokens);
  if (const uint64_t forced = request.forced_tokens.size(); forced > 0) {
    if (s.max_new_tokens.has_value() && wanted != forced) {
      return Refuse(
          "stopping.max_new_tokens", wanted,
          absl::StrCat("none, or the number of forced_tokens (", forced, ")"));
    }
    wanted = forced;
  }
  if (s.min_new_tokens > wanted) {
    return Refuse("stopping.min_new_tokens", s.min_new_tokens,
                  absl::StrCat("at most max_new_tokens (", wanted, ")"));
  }
  return wanted;
}

}  // namespace

absl::StatusOr<RequestSizes> ValidateRequest(const Request& request,
                                             const RequestLimits& limits) {
  const size_t n = request.prompt.size();
  if (n == 0) return Refuse("the prompt", "0 tokens", "at least 1");
  if (n >= static_cast<size_t>(limits.context_tokens)) {
    return Refuse("the prompt", absl::StrCat(n, " tokens"),
                  absl::StrCat("fewer than the model's context of ",
                               limits.context_tokens));
  }
  KF_RETURN_IF_ERROR(
      CheckIds("token_ids.ids", request.prompt, limits.vocabulary));
  KF_RETURN_IF_ERROR(
      CheckIds("forced_tokens.ids", request.forced_tokens, limits.vocabulary));
  KF_RETURN_IF_ERROR(CheckSampling(request.sampling, limits));
  KF_RETURN_IF_ERROR(CheckStopping(request.stopping, limits));
  KF_RETURN_IF_ERROR(CheckCache(request.cache));
  KF_RETURN_IF_ERROR(CheckOutput(request, limits));
  KF_RETURN_IF_ERROR(CheckSequences(request, limits.vocabulary));

  KF_ASSIGN_OR_RETURN(const uint64_t wanted,
                      RequestedNewTokens(request, limits));
  RequestSizes sizes;
  sizes.prompt_tokens = static_cast<int32_t>(n);
  const uint64_t room = static_cast<uint64_t>(limits.context_tokens) - n;
  sizes.max_new_tokens = static_cast<int32_t>(std::min(wanted, room));
  sizes.cut_by_context = wanted > room;
  KF_RETURN_IF_ERROR(FixCacheSizes(request, limits.layers, sizes));
  FixSequences(request, sizes);
  return sizes;
}

}  // namespace kf::engine
