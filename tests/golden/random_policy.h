// Cache options drawn over the whole space of docs/keyformer.md, all of them
// legal.
#pragma once

#include <cstdint>
#include <random>

#include "engine/request.h"

namespace kf::testing {

// low <= result <= high. Not std::uniform_int_distribution: its numbers differ
// between libraries.
int32_t Draw(std::mt19937& random, int32_t low, int32_t high);

// For a model of `layers` layers, in the paper's min_tokens of 1 or a little
// more. `policy` kFull and kQuest evict nothing.
engine::CacheOptions DrawCacheOptions(std::mt19937& random,
                                      engine::CachePolicy policy,
                                      int32_t layers);

}  // namespace kf::testing
