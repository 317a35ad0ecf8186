// Reads from a parsed file whatever the engine would: for hostile files, where
// the answers do not matter and every byte handed out must be readable.
#pragma once

#include <cstddef>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "engine/model/gguf.h"
#include "engine/model/model_config.h"
#include "kernels/core/dtype.h"

namespace kf::engine {

// The bytes of all strings, so that each is read.
inline uint64_t SumOfStrings(const GgufFile& file, std::string_view key) {
  uint64_t sum = 0;
  const auto strings = file.GetStrings(key);
  if (!strings.ok()) return sum;
  for (const std::string_view text : *strings) {
    for (const char c : text) sum += static_cast<unsigned char>(c);
  }
  return sum;
}

// Dequantises the first and last block of each tensor that is handed out.
inline void ReadTensorEdges(const GgufFile& file) {
  for (const GgufTensor& listed : file.tensors()) {
    const auto tensor = file.Tensor(listed.name);
    if (!tensor.ok()) continue;
    const BlockLayout layout = LayoutOf((*tensor)->type);
    std::vector<float> block(static_cast<size_t>(layout.elements));
    Dequantize((*tensor)->type, (*tensor)->data, layout.elements, block.data());
    const std::byte* last = (*tensor)->data + (*tensor)->bytes - layout.bytes;
    Dequantize((*tensor)->type, last, layout.elements, block.data());
  }
}

// The status of ReadModelConfig, after the other reads.
inline absl::Status ProbeGguf(const GgufFile& file) {
  volatile uint64_t sink = SumOfStrings(file, "tokenizer.ggml.tokens");
  sink = sink + SumOfStrings(file, "tokenizer.ggml.merges");
  for (const std::string_view key :
       {"tokenizer.ggml.token_type", "tokenizer.ggml.scores",
        "tokenizer.ggml.model", "tokenizer.ggml.pre", "general.alignment",
        "tokenizer.chat_template", "tokenizer.ggml.bos_token_id",
        "tokenizer.ggml.add_bos_token"}) {
    sink = sink + (file.Has(key) ? 1U : 0U);
    sink = sink + file.GetInts(key).value_or(std::vector<int64_t>()).size();
    sink = sink + file.GetFloats(key).value_or(std::vector<float>()).size();
    sink = sink + file.GetString(key).value_or("").size();
    sink = sink + file.GetUint(key).value_or(0);
    sink = sink + (file.GetBool(key).value_or(false) ? 1U : 0U);
    sink = sink + (file.GetFloat(key).ok() ? 1U : 0U);
  }
  ReadTensorEdges(file);
  return ReadModelConfig(file).status();
}

}  // namespace kf::engine
