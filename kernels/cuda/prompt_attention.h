// Causal attention of a prompt's rows over their pages.
#pragma once

#include "kernels/cuda/prompt.h"

namespace kf::cuda {

// After AppendPrompt (and RotateRankedKeys). out = softmax(x) V, where x =
// q.k / sqrt(d), less slope * distance with ALiBi; and score_rows of the rows
// that are scored: the maximum and the sum of their noisy softmax.
//
// bf16: products on tensor cores (the probabilities rounded to bf16 too), sums
// in f32. f32: fused multiply-adds.
void AttendPrompt(gpu::Stream stream, const PromptArgs& args);

}  // namespace kf::cuda
