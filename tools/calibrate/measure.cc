#include "tools/calibrate/measure.h"

#include <algorithm>
#include <thread>
#include <utility>

#include "kernels/core/mutex.h"
#include "kernels/core/status.h"

namespace kf::tools {
namespace {

// What one probe's answer says.
struct Outcome {
  double nll_sum = 0.0;  // nats, over the tokens that count
  size_t tokens = 0;
  bool all_best = true;  // every forced token was the most probable
  double evicted = 0.0;  // share
};

absl::StatusOr<Outcome> Ask(Client& client,
                            const Probe& probe,
                            const CacheFor& cache) {
  pb::GenerateRequest request;
  request.mutable_token_ids()->mutable_ids()->Assign(probe.prompt.begin(),
                                                     probe.prompt.end());
  request.mutable_forced_tokens()->mutable_ids()->Assign(probe.forced.begin(),
                                                         probe.forced.end());
  *request.mutable_cache() = cache(probe.prompt.size(), probe.forced.size());
  Outcome outcome;
  size_t seen = 0;
  pb::Usage usage;
  KF_RETURN_IF_ERROR(
      client.Stream(request, {}, [&](const pb::GenerateChunk& chunk) {
        for (const pb::TokenLogprob& token : chunk.logprobs()) {
          outcome.all_best &= token.rank() == 1;
          if (seen++ == 0) continue;
          outcome.nll_sum -= token.logprob();
          ++outcome.tokens;
        }
        if (chunk.has_usage()) usage = chunk.usage();
        return true;
      }));
  if (seen != probe.forced.size()) {
    return absl::InternalError(absl::StrCat("the server answered ", seen,
                                            " of ", probe.forced.size(),
                                            " forced tokens"));
  }
  // The last token is never fed.
  const size_t fed = probe.prompt.size() + seen - 1;
  outcome.evicted = usage.evicted_tokens() / static_cast<double>(fed);
  return outcome;
}

Losses Sum(const std::vector<Probe>& probes,
           const std::vector<Outcome>& outcomes) {
  Losses losses;
  double fact_sum = 0.0;
  double text_sum = 0.0;
  size_t fact_tokens = 0;
  size_t text_tokens = 0;
  for (size_t i = 0; i < probes.size(); ++i) {
    const Outcome& outcome = outcomes[i];
    losses.evicted += outcome.evicted / static_cast<double>(probes.size());
    if (probes[i].kind == ProbeKind::kFact) {
      ++losses.facts;
      losses.facts_right += outcome.all_best ? 1 : 0;
      fact_sum += outcome.nll_sum;
      fact_tokens += outcome.tokens;
    } else {
      text_sum += outcome.nll_sum;
      text_tokens += outcome.tokens;
    }
  }
  const auto mean = [](double sum, size_t count) {
    return sum / static_cast<double>(std::max<size_t>(count, 1));
  };
  losses.fact_nll = mean(fact_sum, fact_tokens);
  losses.text_nll = mean(text_sum, text_tokens);
  return losses;
}

}  // namespace

Measurer::Measurer(Client& client,
                   const std::vector<Probe>& probes,
                   size_t streams)
    : client_(client), probes_(probes), streams_(streams) {
  KF_CHECK(streams_ > 0);
}

absl::StatusOr<Losses> Measurer::Run(const CacheFor& cache) {
  std::vector<Outcome> outcomes(probes_.size());
  Mutex mu;
  size_t next = 0;
  absl::Status error;
  const auto work = [&] {
    while (true) {
      size_t index;
      {
        const MutexLock lock(mu);
        if (!error.ok() || next == probes_.size()) return;
        index = next++;
      }
      absl::StatusOr<Outcome> outcome = Ask(client_, probes_[index], cache);
      const MutexLock lock(mu);
      if (!outcome.ok()) {
        error.Update(outcome.status());
        return;
      }
      outcomes[index] = *outcome;
    }
  };
  std::vector<std::thread> threads;
  for (size_t i = 0; i < std::min(streams_, probes_.size()); ++i) {
    threads.emplace_back(work);
  }
  for (std::thread& thread : threads) thread.join();
  KF_RETURN_IF_ERROR(error);
  return Sum(probes_, outcomes);
}

}  // namespace kf::tools
