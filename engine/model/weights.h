// A model's tensors, loaded into a backend: what the decoder multiplies by.
#pragma once

#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/model/gguf.h"
#include "engine/model/model_config.h"
#include "kernels/backend.h"

namespace kf::engine {

struct LayerWeights {
  std::unique_ptr<Buffer> attention_norm;  // [hidden]
  std::unique_ptr<LinearWeights> qkv;      // [(H + 2 G) d, hidden]
  std::unique_ptr<LinearWeights> output;   // [hidden, H d]
  std::unique_ptr<Buffer> ffn_norm;        // [hidden]
  std::unique_ptr<LinearWeights> gate_up;  // [2 ffn, hidden]
  std::unique_ptr<LinearWeights> down;     // [hidden, ffn]
};

struct ModelWeights {
  std::unique_ptr<EmbeddingTable> embedding;  // [vocabulary, hidden]
  std::vector<LayerWeights> layers;
  std::unique_ptr<Buffer> final_norm;   // [hidden]
  std::unique_ptr<LinearWeights> head;  // [vocabulary, hidden]
};

// The integers that the file itself is made of, by most of its linear weights:
// kQ4 where they are in groups of 4 bits, kQ8 in other quantised types, kBF16
// where they are floats. A function of the file alone.
WeightFormat AutoWeightFormat(const GgufFile& file);

// The file outlives the weights (the embedding is read from its mapping). The
// names and shapes have been checked by ReadModelConfig.
absl::StatusOr<ModelWeights> LoadWeights(const GgufFile& file,
                                         const ModelConfig& config,
                                         WeightFormat format,
                                         Backend& backend);

}  // namespace kf::engine
