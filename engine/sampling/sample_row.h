// The sampler's input, said to a backend that samples rows itself, and its
// answer in the engine's words. Same input, same token and logprobs, bit for
// bit, as Sampler and LogprobOf give.
#pragma once

#include <cstdint>
#include <vector>

#include "engine/request.h"
#include "engine/sampling/sampler.h"
#include "kernels/core/sample_row.h"

namespace kf::engine {

// Whether Backend::StartSampling can be asked. It may still leave a row
// undecided.
bool RowCanBeSampled(const SamplingParams& params);
bool RowCanBeDescribed(const OutputParams& output);

// Fills all but the logits, and what is wanted of them. `changes` holds what
// the row refers to, as `input` does; input.logits is not read.
SampleRow MakeSampleRow(const Sampler::Input& input,
                        std::vector<LogitChange>& changes);

// Asks for the logprob of the row's token, and the `top` most probable.
void AskForLogprobs(uint32_t top, int32_t vocabulary, SampleOptions& options);
// What it came to. Of a chosen row that was asked.
TokenLogprob LogprobOf(const SampledRow& row);

}  // namespace kf::engine
