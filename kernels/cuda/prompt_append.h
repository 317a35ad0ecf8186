// The first step of a prompt's attention: rotary embedding, and the append of
// keys and values to the cache.
#pragma once

#include "kernels/cuda/prompt.h"

namespace kf::cuda {

// Of each row at position p: queries = its heads, rotated by p, in T, padded
// with zeros; slot p of the pages = K (rotated by p, but as it is with
// rank_positions) and V, in T, padded with zeros; position p; score 0. Bound by
// memory.
void AppendPrompt(gpu::Stream stream, const PromptArgs& args);

// Items with rank_positions: ranked_keys = keys [0, first_row + rows) of the
// pages, rotated by their rank, which is their position in a prompt, and
// rounded to T once more. Does nothing unless any_ranked.
void RotateRankedKeys(gpu::Stream stream, const PromptArgs& args);

}  // namespace kf::cuda
