#include "engine/beam_search.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <utility>

#include "kernels/core/status.h"

namespace kf::engine {

BeamSearch::BeamSearch(const BeamParams& params,
                       int32_t max_new_tokens,
                       std::vector<TokenId> end_ids)
    : params_(params),
      width_(params.width),
      max_new_tokens_(static_cast<uint32_t>(max_new_tokens)),
      end_ids_(std::move(end_ids)),
      live_(1),
      over_(max_new_tokens == 0) {
  KF_CHECK(width_ >= 1 && max_new_tokens >= 0);
}

double BeamSearch::Score(double logprob, size_t length) const {
  return logprob / std::pow(static_cast<double>(std::max<size_t>(length, 1)),
                            params_.length_penalty);
}

bool BeamSearch::Ends(TokenId token) const {
  return std::find(end_ids_.begin(), end_ids_.end(), token) != end_ids_.end();
}

std::vector<BeamSearch::Continuation> BeamSearch::Rank(
    size_t beam, std::span<const float> logits, const LogitsScan& scan) const {
  const double before = live_[beam].logprob;
  const auto largest = static_cast<double>(scan.largest);
  const double log_sum = std::log(SumOfExponentials(logits, scan.largest));
  const auto logprob = [&](float logit) {
    return before + ((static_cast<double>(logit) - largest) - log_sum);
  };
  // Even if every end ranks before them, `width` others are among these.
  const size_t count = std::min(width_ + end_ids_.size(), logits.size());
  double last = logprob(scan.largest);
  for (const TokenId id : SelectLargest(logits, count)) {
    last = std::min(last, logprob(logits[static_cast<size_t>(id)]));
  }
  // Logits that differ may have equal sums: then the smaller token is first.
  std::vector<Continuation> best;
  for (size_t id = 0; id < logits.size(); ++id) {
    const double sum = logprob(logits[id]);
    if (sum >= last) best.push_back({sum, static_cast<TokenId>(id)});
  }
  std::stable_sort(best.begin(), best.end(),
                   [](const Continuation& a, const Continuation& b) {
                     return a.logprob > b.logprob;
                   });
  best.resize(count);
  return best;
}

void BeamSearch::Advance(std::span<const std::vector<Continuation>> rows) {
  KF_CHECK(!over_ && rows.size() == live_.size());
  struct Candidate {
    double logprob;
    size_t beam;
    TokenId token;
  };
  std::vector<Candidate> candidates;
  for (size_t beam = 0; beam < rows.size(); ++beam) {
    for (const Continuation& c : rows[beam]) {
      candidates.push_back({c.logprob, beam, c.token});
    }
  }
  // Of equal ones the earlier beam stays first, and in it the smaller token.
  std::stable_sort(candidates.begin(), candidates.end(),
                   [](const Candidate& a, const Candidate& b) {
                     return a.logprob > b.logprob;
                   });
  ++length_;
  std::vector<Beam> next;
  for (size_t rank = 0; rank < candidates.size() && next.size() < width_;
       ++rank) {
    const Candidate& c = candidates[rank];
    const bool ends = Ends(c.token);
    if (ends && rank >= width_) continue;
    std::vector<TokenId> tokens = live_[c.beam].tokens;
    tokens.push_back(c.token);
    if (ends) {
      finished_.push_back(
          {Score(c.logprob, tokens.size()), std::move(tokens), true});
    } else {
      next.push_back({c.logprob, c.beam, std::move(tokens)});
    }
  }
  live_ = std::move(next);
  KeepBest(finished_);
  over_ = length_ >= max_new_tokens_ || live_.size() < width_;
  if (live_.empty() || finished_.size() < width_) return;
  if (params_.early_stopping ||
      Score(live_.front().logprob, length_) <= finished_.back().score) {
    live_.clear();
    over_ = true;
  }
}

// Of equal ones those that were first.
void BeamSearch::KeepBest(std::vector<Result>& results) const {
  std::stable_sort(
      results.begin(), results.end(),
      [](const Result& a, const Result& b) { return a.score > b.score; });
  if (results.size() > width_) {
    results.erase(results.begin() + static_cast<std::ptrdiff_t>(width_),
                  results.end());
  }
}

std::vector<BeamSearch::Result> BeamSearch::Best() const {
  std::vector<Result> results = finished_;
  for (const Beam& beam : live_) {
    results.push_back(
        {Score(beam.logprob, beam.tokens.size()), beam.tokens, false});
  }
  KeepBest(results);
  return results;
}

}  // namespace kf::engine
