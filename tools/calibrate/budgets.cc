#include "tools/calibrate/budgets.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "kernels/core/status.h"

namespace kf::tools {
namespace {

double Sum(std::span<const double> values) {
  return std::accumulate(values.begin(), values.end(), 0.0);
}

}  // namespace

TokensAndWeights WithShares(std::span<const double> shares,
                            size_t n,
                            size_t forced) {
  // One more than a sequence can hold, so that rounding evicts nothing.
  const double whole = static_cast<double>(n + forced + 1);
  std::vector<double> budgets;
  for (const double share : shares) {
    budgets.push_back(share >= 1.0 ? whole : share * static_cast<double>(n));
  }
  const double layers = static_cast<double>(budgets.size());
  const double mean = Sum(budgets) / layers;
  KF_CHECK(mean > 0.0);
  TokensAndWeights result;
  // k is whole; rounded up, its weights are a little smaller and their mean is
  // made up for by the layers that evict nothing, or by all alike.
  result.tokens = static_cast<uint32_t>(std::ceil(mean));
  const double k = result.tokens;
  const double missing = (k - mean) * layers;
  const auto wholes = std::count_if(shares.begin(), shares.end(),
                                    [](double share) { return share >= 1.0; });
  for (size_t l = 0; l < budgets.size(); ++l) {
    if (wholes == 0) {
      budgets[l] *= k / mean;
    } else if (shares[l] >= 1.0) {
      budgets[l] += missing / static_cast<double>(wholes);
    }
    result.weights.push_back(budgets[l] / k);
  }
  return result;
}

std::vector<double> Spread(std::span<const double> merits,
                           const std::vector<bool>& whole,
                           double power,
                           double ratio,
                           double least) {
  const size_t layers = merits.size();
  KF_CHECK(layers > 0 && whole.size() == layers);
  KF_CHECK(least > 0.0 && least <= ratio && ratio < 1.0);
  const double total = ratio * static_cast<double>(layers);
  const auto wholes =
      static_cast<double>(std::count(whole.begin(), whole.end(), true));
  const double others = static_cast<double>(layers) - wholes;
  const double top =
      wholes == 0.0 ? 1.0 : std::min(1.0, (total - others * least) / wholes);
  const auto at = [&](double scale) {
    std::vector<double> shares;
    for (size_t l = 0; l < layers; ++l) {
      const double merit = std::pow(std::max(merits[l], 1e-9), power);
      shares.push_back(whole[l] ? top : std::clamp(scale * merit, least, 1.0));
    }
    return shares;
  };
  // The sum grows with the scale: halve the interval that holds it.
  double low = 0.0;
  double high = 1.0;
  while (high < 1e12 && Sum(at(high)) < total) high *= 2.0;
  for (int i = 0; i < 200; ++i) {
    const double middle = 0.5 * (low + high);
    (Sum(at(middle)) < total ? low : high) = middle;
  }
  return at(high);
}

std::vector<double> RoundedWeights(std::span<const double> shares) {
  KF_CHECK(Sum(shares) > 0.0);
  const double factor = static_cast<double>(shares.size()) / Sum(shares);
  // The error is carried on, so that the sum comes out.
  std::vector<double> rounded;
  double wanted = 0.0;
  double given = 0.0;
  for (const double share : shares) {
    wanted += share * factor * 1000.0;
    const double step = std::round(wanted - given);
    given += step;
    rounded.push_back(step / 1000.0);
  }
  return rounded;
}

}  // namespace kf::tools
