// Keyformer's score of a prompt: column sums of the noisy softmax.
#pragma once

#include "kernels/cuda/prompt.h"

namespace kf::cuda {

// After AttendPrompt: adds to the score of each key, of each kv head, the
// noisy softmax of the scored rows, over the query heads that share it.
// Logits are computed once more and noise is drawn once more; nothing of size
// rows x keys is stored. One block sweeps the rows of a tile of keys in order,
// and sums by tiles of kPromptRowTile rows, so that slices change no bit.
void ScorePrompt(gpu::Stream stream, const PromptArgs& args);

}  // namespace kf::cuda
