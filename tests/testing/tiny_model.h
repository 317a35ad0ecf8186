// Tiny random models of architecture llama, the same bits on every machine.
//
// The weights mean nothing; their scale is chosen so that attention is uneven
// and greedy choices are not near ties (as shared by the oracle's own tiny
// models). Token ids 0 .. 255 are the bytes, 256 is <s>, 257 is </s>.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "kernels/core/dtype.h"
#include "tests/testing/gguf_writer.h"

namespace kf::testing {

inline constexpr int32_t kTinyVocabulary = 258;
inline constexpr int32_t kTinyBos = 256;
inline constexpr int32_t kTinyEos = 257;

struct TinyModelSpec {
  uint32_t seed = 1;
  int32_t layers = 2;
  int32_t heads = 4;
  int32_t kv_heads = 2;  // divides heads
  int32_t head_dim = 16;
  int32_t ffn = 128;
  int32_t context = 512;
  bool tied = false;          // no output.weight
  int32_t eos = kTinyEos;     // one that the model likes ends sequences early
  bool chat_template = true;  // a ChatML template
  // Of the matrices: kF32, kF16, kBF16 (rounded to nearest even), kQ8_0, kQ4_1.
  DType weight_type = DType::kF32;
};

// GPT-2's printable stand-ins for the bytes, in byte order, <s>, </s>.
std::vector<std::string> TinyVocabulary();

// The metadata alone, for files that go wrong after it.
void AddTinyMetadata(const TinyModelSpec& spec, GgufWriter& writer);
void AddTinyTensors(const TinyModelSpec& spec, GgufWriter& writer);

// The whole file in memory; WriteTinyModel writes it and returns `path`
// (throws std::runtime_error, which fails a test).
std::string TinyModelBytes(const TinyModelSpec& spec);
std::string WriteTinyModel(const TinyModelSpec& spec, const std::string& path);

}  // namespace kf::testing
