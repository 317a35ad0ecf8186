#include <algorithm>
#include <cmath>

#include "engine/sampling/sampler.h"
#include "kernels/core/status.h"

namespace kf::engine {

TokenLogprob LogprobOf(std::span<const float> logits,
                       const LogitsScan& scan,
                       TokenId id,
                       uint32_t top) {
  KF_CHECK(id >= 0 && static_cast<size_t>(id) < logits.size());
  const auto logit = [logits](TokenId i) {
    return logits[static_cast<size_t>(i)];
  };
  const auto largest = static_cast<double>(scan.largest);
  // The largest is taken off first: the difference is exact where it matters.
  const double log_sum = std::log(SumOfExponentials(logits, scan.largest));
  const auto logprob = [&](TokenId i) {
    return (static_cast<double>(logit(i)) - largest) - log_sum;
  };

  TokenLogprob result;
  result.id = id;
  result.logprob = logprob(id);
  result.rank = 1 + CountBetter(logits, id);
  std::vector<TokenId> best = SelectLargest(logits, top);
  std::sort(best.begin(), best.end(), [&logit](TokenId a, TokenId b) {
    return logit(a) != logit(b) ? logit(a) > logit(b) : a < b;
  });
  for (const TokenId other : best) {
    TokenLogprob& entry = result.top.emplace_back();
    entry.id = other;
    entry.logprob = logprob(other);
    entry.rank = static_cast<uint32_t>(result.top.size());
  }
  return result;
}

}  // namespace kf::engine
