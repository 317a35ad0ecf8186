#include "tools/calibrate/search.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "kernels/core/status.h"
#include "tools/calibrate/budgets.h"

namespace kf::tools {
namespace {

constexpr double kFlat = 0.5;
constexpr double kSteep = 1.0;

class Searcher {
 public:
  Searcher(const SearchOptions& options, const MeasureFn& measure)
      : options_(options), measure_(measure) {}

  absl::StatusOr<SearchResult> Run() {
    KF_ASSIGN_OR_RETURN(result_.full, measure_("nothing is cut", Everything()));
    KF_RETURN_IF_ERROR(
        Try("all layers alike", std::vector(options_.layers, options_.ratio)));
    KF_RETURN_IF_ERROR(FindWhole());
    KF_RETURN_IF_ERROR(FindGains());
    for (const double floor : {0.0, 0.3, 0.6}) {
      const double least =
          options_.least + floor * (options_.ratio - options_.least);
      for (const double power : {kFlat, kSteep}) {
        KF_RETURN_IF_ERROR(
            Try(absl::StrCat("spread ", power == kFlat ? "flatly" : "steeply",
                             ", each at least ", least),
                Spread(result_.gains, whole_, power, options_.ratio, least)));
      }
    }
    return std::move(result_);
  }

 private:
  // Each layer keeps its share; where that is 1 nothing is evicted.
  absl::StatusOr<Losses> WithSharesOf(const std::string& what,
                                      const std::vector<double>& shares) {
    return measure_(what, [&](size_t n, size_t forced) {
      const TokensAndWeights budget = WithShares(shares, n, forced);
      pb::CacheOptions cache = options_.cache;
      cache.set_tokens(budget.tokens);
      cache.mutable_layer_weights()->Assign(budget.weights.begin(),
                                            budget.weights.end());
      return cache;
    });
  }

  // As a profile would have it: weights at the ratio.
  absl::Status Try(const std::string& how, const std::vector<double>& shares) {
    Candidate candidate{how, RoundedWeights(shares), {}};
    KF_ASSIGN_OR_RETURN(candidate.losses,
                        measure_(how, AtTheTotal(options_, candidate.weights)));
    result_.tried.push_back(std::move(candidate));
    const Losses& losses = result_.tried.back().losses;
    const Losses& best = result_.tried[result_.best].losses;
    if (losses.text_nll <= result_.full.text_nll + options_.text_loss &&
        losses.fact_nll < best.fact_nll) {
      result_.best = result_.tried.size() - 1;
    }
    return absl::OkStatus();
  }

  absl::Status FindWhole() {
    for (size_t l = 0; l < options_.layers; ++l) {
      std::vector<double> shares(options_.layers, 1.0);
      shares[l] = options_.share;
      KF_ASSIGN_OR_RETURN(
          const Losses losses,
          WithSharesOf(absl::StrCat("layer ", l, " alone is cut"), shares));
      result_.cut.push_back(losses);
    }
    std::vector<size_t> order(options_.layers);
    std::iota(order.begin(), order.end(), size_t{0});
    std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) {
      return Score(result_.cut[a]) > Score(result_.cut[b]);
    });
    whole_.assign(options_.layers, false);
    std::vector<bool> whole = whole_;
    const std::vector<double> alike(options_.layers, 1.0);
    std::string how = "whole:";
    for (size_t i = 0; i < std::min(options_.most_whole, order.size()); ++i) {
      whole[order[i]] = true;
      absl::StrAppend(&how, " ", order[i]);
      KF_RETURN_IF_ERROR(
          Try(how, Spread(alike, whole, 0.0, options_.ratio, options_.least)));
      if (result_.best + 1 == result_.tried.size()) whole_ = whole;
    }
    return absl::OkStatus();
  }

  absl::Status FindGains() {
    std::vector<double> base(options_.layers);
    for (size_t l = 0; l < base.size(); ++l) {
      base[l] = whole_[l] ? 1.0 : options_.ratio;
    }
    KF_ASSIGN_OR_RETURN(const Losses before,
                        WithSharesOf("the others at the total", base));
    result_.gains.assign(options_.layers, 0.0);
    for (size_t first = 0; first < options_.layers; first += options_.group) {
      const size_t end = std::min(first + options_.group, options_.layers);
      std::vector<double> shares = base;
      size_t spared = 0;
      for (size_t l = first; l < end; ++l) {
        spared += whole_[l] ? 0u : 1u;
        shares[l] = 1.0;
      }
      if (spared == 0) continue;
      KF_ASSIGN_OR_RETURN(const Losses after,
                          WithSharesOf(absl::StrCat("layers ", first, " to ",
                                                    end - 1, " are spared"),
                                       shares));
      const double gain = std::max(0.0, Score(before) - Score(after));
      for (size_t l = first; l < end; ++l) {
        result_.gains[l] = gain / static_cast<double>(spared);
      }
    }
    return absl::OkStatus();
  }

  const SearchOptions& options_;
  const MeasureFn& measure_;
  std::vector<bool> whole_;
  SearchResult result_;
};

}  // namespace

double Score(const Losses& losses) { return losses.fact_nll + losses.text_nll; }

CacheFor Everything() {
  return [](size_t, size_t) {
    pb::CacheOptions cache;
    cache.set_policy(pb::CACHE_POLICY_FULL);
    return cache;
  };
}

CacheFor AtTheTotal(const SearchOptions& options, std::vector<double> weights) {
  return [&options, weights = std::move(weights)](size_t, size_t) {
    pb::CacheOptions cache = options.cache;
    cache.set_ratio(options.ratio);
    cache.set_min_tokens(1);
    cache.mutable_layer_weights()->Assign(weights.begin(), weights.end());
    return cache;
  };
}

size_t CountSettings(const SearchOptions& options) {
  // Nothing cut, all alike, pass 1, its candidates, pass 2, six spreads.
  return 2 + options.layers + options.most_whole + 1 +
         (options.layers + options.group - 1) / options.group + 6;
}

absl::StatusOr<SearchResult> Search(const SearchOptions& options,
                                    const MeasureFn& measure) {
  return Searcher(options, measure).Run();
}

}  // namespace kf::tools
