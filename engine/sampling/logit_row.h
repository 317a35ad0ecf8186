// Passes over one row of logits, [vocabulary], in vector code that every target
// has. What comes out depends on the row alone, bit for bit.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "engine/request.h"

namespace kf::engine {

struct LogitsScan {
  float largest = 0.0F;
  TokenId best = 0;  // the smallest id that has it
  // A NaN, +inf, or nothing finite: then the above means nothing.
  bool bad = false;
};
LogitsScan ScanLogits(std::span<const float> logits);

// exp((x - largest) * scale) for each x, scale > 0. 1 for the largest, 0 below
// e^-86, and between them within 2e-7 (1 + |exponent|) relative. Requires x <=
// largest.
void Exponentials(std::span<const float> x,
                  float largest,
                  double scale,
                  std::span<float> out);
// The sum of exp(x - largest), as above, added in double.
double SumOfExponentials(std::span<const float> x, float largest);
double Sum(std::span<const float> x);  // in double

// How many logits rank before that of `id`: larger, or equal with a smaller id.
uint32_t CountBetter(std::span<const float> logits, TokenId id);

// The `count` largest (of equal ones the smaller ids), or all, in no order.
// `room` lends its memory; what it holds is forgotten.
std::vector<TokenId> SelectLargest(std::span<const float> logits,
                                   size_t count,
                                   std::vector<TokenId> room = {});

}  // namespace kf::engine
