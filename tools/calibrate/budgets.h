// The arithmetic of layer weights: which weights give each layer its share of
// the prompt, and how a total is spread. Pure.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace kf::tools {

struct TokensAndWeights {
  uint32_t tokens = 0;          // CacheOptions.tokens, the mean k of a layer
  std::vector<double> weights;  // [layers], mean 1
};

// Layer l keeps shares[l] of a prompt of n tokens; where that is 1 or more, all
// of n + forced, so that nothing is evicted there. shares: [layers], >= 0, one
// of them above 0.
TokensAndWeights WithShares(std::span<const double> shares,
                            size_t n,
                            size_t forced);

// Shares with mean `ratio`: `whole` layers have 1, the others at least `least`
// and at most 1, in proportion to merits[l] ^ power in between (power 0: all
// alike). Where the whole layers alone take too much, they get less: what is
// left after `least` for the others. merits: [layers], >= 0; whole: [layers];
// 0 < least <= ratio < 1.
std::vector<double> Spread(std::span<const double> merits,
                           const std::vector<bool>& whole,
                           double power,
                           double ratio,
                           double least);

// Shares as weights with mean 1, in whole thousandths: what a profile file
// holds. The sum is exact to 1e-9.
std::vector<double> RoundedWeights(std::span<const double> shares);

}  // namespace kf::tools
