#include "tests/testing/tiny_model.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <fstream>
#include <stdexcept>

#include "engine/model/byte_level.h"
#include "kernels/core/bf16.h"
#include "kernels/core/half.h"
#include "kernels/core/noise.h"

namespace kf::testing {
namespace {

constexpr char kChatMl[] =
    "{% for message in messages %}{{'<|im_start|>' + message['role'] + '\n' + "
    "message['content'] + '<|im_end|>' + '\n'}}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}";

// Nearly normal, exact in f64: the sum of twelve uniforms, less six. Element
// `index` of the tensor numbered `tensor`.
double Normal(uint32_t seed, uint32_t tensor, uint32_t index) {
  const Philox4 a = Philox4x32(index, tensor, 0, 0, seed, 0x4B46U);
  const Philox4 b = Philox4x32(index, tensor, 1, 0, seed, 0x4B46U);
  uint32_t sum = 0;
  for (const uint32_t word :
       {a.word[0], a.word[1], a.word[2], a.word[3], b.word[0], b.word[1]}) {
    sum += (word & 0xFFFFU) + (word >> 16);
  }
  // Each uniform is (u16 + 1/2) / 2^16.
  return (static_cast<double>(sum) + 6.0) / 65536.0 - 6.0;
}

// 32 values as a block of Q8_0.
std::string EncodeQ8(const float* values) {
  float largest = 0.0F;
  for (int i = 0; i < 32; ++i)
    largest = std::max(largest, std::fabs(values[i]));
  const uint16_t scale = FloatToHalf(largest / 127.0F);
  std::string bytes = RawBytes(scale);
  for (int i = 0; i < 32; ++i) {
    const float quant = std::nearbyint(values[i] / HalfToFloat(scale));
    bytes += RawBytes(static_cast<int8_t>(std::clamp(quant, -127.0F, 127.0F)));
  }
  return bytes;
}

// As a block of Q4_1.
std::string EncodeQ4(const float* values) {
  const auto [least, most] = std::minmax_element(values, values + 32);
  const uint16_t scale = FloatToHalf((*most - *least) / 15.0F);
  const uint16_t minimum = FloatToHalf(*least);
  const auto quant = [&](int i) {
    const float q =
        std::nearbyint((values[i] - HalfToFloat(minimum)) / HalfToFloat(scale));
    return static_cast<uint32_t>(std::clamp(q, 0.0F, 15.0F));
  };
  std::string bytes = RawBytes(scale) + RawBytes(minimum);
  for (int i = 0; i < 16; ++i) {
    bytes += RawBytes(static_cast<uint8_t>(quant(i) | quant(i + 16) << 4));
  }
  return bytes;
}

std::string Encode(const std::vector<float>& values, DType type) {
  std::string bytes;
  if (type == DType::kQ8_0 || type == DType::kQ4_1) {
    for (size_t i = 0; i < values.size(); i += 32) {
      bytes +=
          type == DType::kQ8_0 ? EncodeQ8(&values[i]) : EncodeQ4(&values[i]);
    }
    return bytes;
  }
  for (const float value : values) {
    if (type == DType::kF32) {
      bytes += RawBytes(value);
    } else if (type == DType::kF16) {
      bytes += RawBytes(FloatToHalf(value));
    } else {
      bytes += RawBytes(FloatToBf16(value));
    }
  }
  return bytes;
}

// Adds tensors in order, each with random numbers of its own.
class TensorMaker {
 public:
  TensorMaker(const TinyModelSpec& spec, GgufWriter& writer)
      : spec_(spec), writer_(writer) {}

  void Matrix(const std::string& name, int32_t rows, int32_t cols, double std) {
    const std::array<uint64_t, 2> dims = {static_cast<uint64_t>(cols),
                                          static_cast<uint64_t>(rows)};
    std::vector<float> values(dims[0] * dims[1]);
    for (uint32_t i = 0; i < values.size(); ++i) {
      values[i] = static_cast<float>(Normal(spec_.seed, tensor_, i) * std);
    }
    writer_.AddTensor(name, dims, static_cast<uint32_t>(spec_.weight_type),
                      Encode(values, spec_.weight_type));
    ++tensor_;
  }

  // A layer whose outputs are as large as its inputs, times `gain`.
  void Linear(const std::string& name,
              int32_t rows,
              int32_t cols,
              double gain = 1.0) {
    Matrix(name, rows, cols, gain / std::sqrt(static_cast<double>(cols)));
  }

  void Norm(const std::string& name, int32_t width) {
    const std::array<uint64_t, 1> dims = {static_cast<uint64_t>(width)};
    std::vector<float> values(dims[0]);
    for (uint32_t i = 0; i < values.size(); ++i) {
      // By a power of two, so that a fused multiply-add changes nothing.
      values[i] =
          static_cast<float>(1.0 + Normal(spec_.seed, tensor_, i) * 0.125);
    }
    writer_.AddTensorF32(name, dims, values);
    ++tensor_;
  }

 private:
  const TinyModelSpec& spec_;
  GgufWriter& writer_;
  uint32_t tensor_ = 0;
};

}  // namespace

std::vector<std::string> TinyVocabulary() {
  std::vector<std::string> tokens = engine::ByteLevelTokens();
  tokens.push_back("<s>");
  tokens.push_back("</s>");
  return tokens;
}

void AddTinyMetadata(const TinyModelSpec& spec, GgufWriter& writer) {
  const auto u32 = [&](std::string_view key, int32_t value) {
    writer.AddUint32(key, static_cast<uint32_t>(value));
  };
  writer.AddString("general.architecture", "llama");
  writer.AddString("general.name", "tiny-" + std::to_string(spec.seed));
  u32("llama.context_length", spec.context);
  u32("llama.embedding_length", spec.heads * spec.head_dim);
  u32("llama.block_count", spec.layers);
  u32("llama.feed_forward_length", spec.ffn);
  u32("llama.attention.head_count", spec.heads);
  u32("llama.attention.head_count_kv", spec.kv_heads);
  writer.AddFloat32("llama.attention.layer_norm_rms_epsilon", 1e-5F);
  writer.AddFloat32("llama.rope.freq_base", 10000.0F);
  u32("llama.rope.dimension_count", spec.head_dim);
  u32("llama.vocab_size", kTinyVocabulary);
  writer.AddString("tokenizer.ggml.model", "gpt2");
  writer.AddString("tokenizer.ggml.pre", "gpt-2");
  writer.AddStrings("tokenizer.ggml.tokens", TinyVocabulary());
  std::vector<int32_t> types(kTinyVocabulary, 1);
  types[kTinyBos] = 3;  // control
  types[kTinyEos] = 3;
  writer.AddInt32s("tokenizer.ggml.token_type", types);
  writer.AddStrings("tokenizer.ggml.merges", {});
  u32("tokenizer.ggml.bos_token_id", kTinyBos);
  u32("tokenizer.ggml.eos_token_id", spec.eos);
  writer.AddBool("tokenizer.ggml.add_bos_token", false);
  if (spec.chat_template) writer.AddString("tokenizer.chat_template", kChatMl);
}

void AddTinyTensors(const TinyModelSpec& spec, GgufWriter& writer) {
  const int32_t hidden = spec.heads * spec.head_dim;
  const int32_t kv_dim = spec.kv_heads * spec.head_dim;
  TensorMaker make(spec, writer);
  make.Matrix("token_embd.weight", kTinyVocabulary, hidden, 1.0);
  for (int32_t i = 0; i < spec.layers; ++i) {
    const std::string block = "blk." + std::to_string(i) + ".";
    make.Norm(block + "attn_norm.weight", hidden);
    make.Linear(block + "attn_q.weight", hidden, hidden, 1.6);
    make.Linear(block + "attn_k.weight", kv_dim, hidden, 1.6);
    make.Linear(block + "attn_v.weight", kv_dim, hidden);
    make.Linear(block + "attn_output.weight", hidden, hidden);
    make.Norm(block + "ffn_norm.weight", hidden);
    make.Linear(block + "ffn_gate.weight", spec.ffn, hidden);
    make.Linear(block + "ffn_up.weight", spec.ffn, hidden);
    make.Linear(block + "ffn_down.weight", hidden, spec.ffn);
  }
  make.Norm("output_norm.weight", hidden);
  if (!spec.tied) make.Linear("output.weight", kTinyVocabulary, hidden, 3.0);
}

std::string TinyModelBytes(const TinyModelSpec& spec) {
  GgufWriter writer;
  AddTinyMetadata(spec, writer);
  AddTinyTensors(spec, writer);
  return writer.File();
}

std::string WriteTinyModel(const TinyModelSpec& spec, const std::string& path) {
  const std::string bytes = TinyModelBytes(spec);
  std::ofstream out(path, std::ios::binary | std::ios::trunc);
  out.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  out.close();
  if (!out) throw std::runtime_error("cannot write " + path);
  return path;
}

}  // namespace kf::testing
