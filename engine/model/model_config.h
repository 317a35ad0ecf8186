// Hyper-parameters of a decoder, read from a file's metadata and checked
// against its tensors before anything is allocated from them.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "engine/model/gguf.h"
#include "kernels/backend.h"

namespace kf::engine {

// Limits that keep products of two dimensions, and sums over layers, far from
// overflow; real models stay below.
inline constexpr int32_t kMaxLayers = 1024;
inline constexpr int32_t kMaxHidden = 1 << 16;
inline constexpr int32_t kMaxFfn = 1 << 20;
inline constexpr int32_t kMaxHeads = 1024;
inline constexpr int32_t kMaxHeadDim = 256;
inline constexpr int32_t kMaxVocabulary = 1 << 22;
inline constexpr int32_t kMaxContext = 1 << 20;

struct ModelConfig {
  std::string name;          // general.name, escaped to ASCII; may be empty
  std::string architecture;  // "llama"
  int32_t layers = 0;
  int32_t hidden = 0;
  int32_t ffn = 0;
  int32_t query_heads = 0;
  int32_t kv_heads = 0;
  int32_t head_dim = 0;
  int32_t rotary_dim = 0;
  double rope_base = 10000.0;
  float norm_eps = 1e-5F;
  int32_t vocabulary = 0;
  int32_t context_tokens = 0;
  bool tied_output = false;  // no output.weight: token_embd.weight is used
  uint64_t parameters = 0;   // elements of all tensors

  AttentionShape attention_shape(DType cache_dtype) const;
};

// kInvalidArgument names the key or tensor, its value and what was expected:
// another architecture, rope scaling (llama.rope.scaling.*), a tensor of the
// wrong shape or unsupported type, a vocabulary that differs from the
// embedding.
absl::StatusOr<ModelConfig> ReadModelConfig(const GgufFile& file);

}  // namespace kf::engine
