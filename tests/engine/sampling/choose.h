#pragma once

#include "engine/sampling/sampler.h"

namespace kf::engine {

inline TokenId Choose(Sampler& sampler, const Sampler::Input& input) {
  return sampler.Sample(input, ScanLogits(input.logits));
}

}  // namespace kf::engine
