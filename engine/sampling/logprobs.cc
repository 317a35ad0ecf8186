#include <algorithm>
#include <cmath>
#include <numeric>

#include "engine/sampling/sampler.h"
#include "kernels/core/status.h"

namespace kf::engine {

bool HasBadLogits(std::span<const float> logits) {
  bool any_finite = false;
  for (const float x : logits) {
    if (std::isnan(x) || (std::isinf(x) && x > 0.0F)) return true;
    any_finite = any_finite || std::isfinite(x);
  }
  return !any_finite;
}

TokenLogprob LogprobOf(std::span<const float> logits,
                       TokenId id,
                       uint32_t top) {
  KF_CHECK(id >= 0 && static_cast<size_t>(id) < logits.size());
  const auto logit = [logits](TokenId i) {
    return logits[static_cast<size_t>(i)];
  };
  const auto largest =
      static_cast<double>(*std::max_element(logits.begin(), logits.end()));
  double sum = 0.0;
  for (const float x : logits)
    sum += std::exp(static_cast<double>(x) - largest);
  // The largest is taken off first: the difference is exact where it matters.
  const double log_sum = std::log(sum);
  const auto logprob = [&](TokenId i) {
    return (static_cast<double>(logit(i)) - largest) - log_sum;
  };

  const auto better = [&logit](TokenId a, TokenId b) {
    return logit(a) != logit(b) ? logit(a) > logit(b) : a < b;
  };
  std::vector<TokenId> order(logits.size());
  std::iota(order.begin(), order.end(), 0);
  TokenLogprob result;
  result.id = id;
  result.logprob = logprob(id);
  result.rank = 1 + static_cast<uint32_t>(std::count_if(
                        order.begin(), order.end(),
                        [&](TokenId other) { return better(other, id); }));
  const size_t count = std::min<size_t>(top, order.size());
  if (count == 0) return result;
  std::partial_sort(order.begin(),
                    order.begin() + static_cast<std::ptrdiff_t>(count),
                    order.end(), better);
  for (size_t i = 0; i < count; ++i) {
    TokenLogprob& entry = result.top.emplace_back();
    entry.id = order[i];
    entry.logprob = logprob(order[i]);
    entry.rank = static_cast<uint32_t>(i + 1);
  }
  return result;
}

}  // namespace kf::engine
