#include "engine/model/model_config.h"

#include <cmath>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "engine/model/gguf_parse.h"
#include "kernels/core/status.h"

namespace kf::engine {
namespace {

template <typename... Args>
absl::Status Refuse(const Args&... args) {
  return absl::InvalidArgumentError(absl::StrCat(args...));
}

struct Range {
  int32_t min;
  int32_t max;
};

// An integer of the file; `fallback` where the key is absent.
absl::StatusOr<int32_t> ReadInt(const GgufFile& file,
                                std::string_view key,
                                Range range,
                                std::optional<int32_t> fallback = {}) {
  if (fallback.has_value() && !file.Has(key)) return *fallback;
  KF_ASSIGN_OR_RETURN(const int64_t value, file.GetInt(key));
  if (value < range.min || value > range.max) {
    return Refuse("key ", ToAbsl(key), ": ", value, ", want ", range.min,
                  " to ", range.max);
  }
  return static_cast<int32_t>(value);
}

absl::StatusOr<double> ReadPositive(const GgufFile& file,
                                    std::string_view key,
                                    double max,
                                    std::optional<double> fallback = {}) {
  if (fallback.has_value() && !file.Has(key)) return *fallback;
  KF_ASSIGN_OR_RETURN(const double value, file.GetFloat(key));
  if (!(value > 0.0 && value <= max)) {
    return Refuse("key ", ToAbsl(key), ": ", value, ", want a number in (0, ",
                  max, "]");
  }
  return value;
}

absl::Status CheckRopeScaling(const GgufFile& file) {
  constexpr std::string_view kTypeKey = "llama.rope.scaling.type";
  if (file.HasTensor("rope_freqs.weight")) {
    return Refuse("tensor rope_freqs.weight: rotary scaling is not supported");
  }
  if (file.Has(kTypeKey)) {
    KF_ASSIGN_OR_RETURN(const std::string_view type, file.GetString(kTypeKey));
    if (type == "none") return absl::OkStatus();
    return Refuse("key ", ToAbsl(kTypeKey), ": ", GgufQuote(type),
                  ": rotary scaling is not supported, want none");
  }
  // scale_linear is the factor's name in old files.
  for (const std::string_view key :
       {"llama.rope.scaling.factor", "llama.rope.scale_linear"}) {
    if (!file.Has(key)) continue;
    KF_ASSIGN_OR_RETURN(const double factor, file.GetFloat(key));
    if (factor != 1.0) {
      return Refuse("key ", ToAbsl(key), ": ", factor,
                    ": rotary scaling is not supported, want 1");
    }
  }
  return absl::OkStatus();
}

// Keys that would change what is computed: refused rather than ignored.
absl::Status CheckUnsupportedKeys(const GgufFile& file) {
  for (const std::string_view key :
       {"llama.expert_count", "llama.attention.sliding_window"}) {
    KF_RETURN_IF_ERROR(ReadInt(file, key, {0, 0}, 0).status());
  }
  for (const std::string_view key :
       {"llama.attention.scale", "llama.attention.clamp_kqv",
        "llama.attn_logit_softcapping", "llama.final_logit_softcapping",
        "llama.embedding_scale", "llama.residual_scale", "llama.logit_scale"}) {
    if (file.Has(key)) return Refuse("key ", ToAbsl(key), " is not supported");
  }
  constexpr std::string_view kCausal = "llama.attention.causal";
  if (file.Has(kCausal)) {
    KF_ASSIGN_OR_RETURN(const bool causal, file.GetBool(kCausal));
    if (!causal) return Refuse("key ", ToAbsl(kCausal), ": false, want true");
  }
  return CheckRopeScaling(file);
}

absl::Status ReadHeads(const GgufFile& file, ModelConfig& config) {
  constexpr std::string_view kHeads = "llama.attention.head_count";
  constexpr std::string_view kKvHeads = "llama.attention.head_count_kv";
  constexpr std::string_view kKeyLength = "llama.attention.key_length";
  constexpr std::string_view kValueLength = "llama.attention.value_length";
  KF_ASSIGN_OR_RETURN(config.query_heads,
                      ReadInt(file, kHeads, {1, kMaxHeads}));
  KF_ASSIGN_OR_RETURN(
      config.kv_heads,
      ReadInt(file, kKvHeads, {1, config.query_heads}, config.query_heads));
  if (config.query_heads % config.kv_heads != 0) {
    return Refuse("key ", ToAbsl(kKvHeads), ": ", config.kv_heads,
                  ", want a divisor of the head count ", config.query_heads);
  }
  if (!file.Has(kKeyLength) && config.hidden % config.query_heads != 0) {
    return Refuse("key ", ToAbsl(kHeads), ": ", config.query_heads,
                  ", want a divisor of the embedding length ", config.hidden);
  }
  const int32_t even_share = config.hidden / config.query_heads;
  KF_ASSIGN_OR_RETURN(config.head_dim,
                      ReadInt(file, kKeyLength, {2, kMaxHeadDim}, even_share));
  if (config.head_dim < 2 || config.head_dim > kMaxHeadDim ||
      config.head_dim % 2 != 0) {
    return Refuse("head size ", config.head_dim,
                  " (key_length, or embedding length / heads), want an even "
                  "number up to ",
                  kMaxHeadDim);
  }
  // Keys and values share pages, so they have one size.
  KF_RETURN_IF_ERROR(ReadInt(file, kValueLength,
                             {config.head_dim, config.head_dim},
                             config.head_dim)
                         .status());
  constexpr std::string_view kRotary = "llama.rope.dimension_count";
  KF_ASSIGN_OR_RETURN(
      config.rotary_dim,
      ReadInt(file, kRotary, {0, config.head_dim}, config.head_dim));
  if (config.rotary_dim % 2 != 0) {
    return Refuse("key ", ToAbsl(kRotary), ": ", config.rotary_dim,
                  ", want an even number");
  }
  return absl::OkStatus();
}

absl::Status ReadSizes(const GgufFile& file, ModelConfig& config) {
  KF_ASSIGN_OR_RETURN(config.layers,
                      ReadInt(file, "llama.block_count", {1, kMaxLayers}));
  KF_ASSIGN_OR_RETURN(config.hidden,
                      ReadInt(file, "llama.embedding_length", {1, kMaxHidden}));
  KF_ASSIGN_OR_RETURN(config.ffn,
                      ReadInt(file, "llama.feed_forward_length", {1, kMaxFfn}));
  KF_ASSIGN_OR_RETURN(config.context_tokens,
                      ReadInt(file, "llama.context_length", {1, kMaxContext}));
  KF_RETURN_IF_ERROR(ReadHeads(file, config));
  KF_ASSIGN_OR_RETURN(
      config.rope_base,
      ReadPositive(file, "llama.rope.freq_base", 1e12, 10000.0));
  KF_ASSIGN_OR_RETURN(
      const double eps,
      ReadPositive(file, "llama.attention.layer_norm_rms_epsilon", 1.0));
  config.norm_eps = static_cast<float>(eps);
  return absl::OkStatus();
}

absl::StatusOr<const GgufTensor*> RequireTensor(const GgufFile& file,
                                                std::string_view name) {
  absl::StatusOr<const GgufTensor*> tensor = file.Tensor(name);
  if (absl::IsNotFound(tensor.status())) {
    return absl::InvalidArgumentError(tensor.status().message());
  }
  return tensor;
}

// The vocabulary is as large as the embedding; whatever else gives its size
// must agree.
absl::Status ReadVocabulary(const GgufFile& file, ModelConfig& config) {
  constexpr std::string_view kEmbedding = "token_embd.weight";
  KF_ASSIGN_OR_RETURN(const GgufTensor* embedding,
                      RequireTensor(file, kEmbedding));
  if (embedding->dims.size() != 2 || embedding->dims[1] > kMaxVocabulary) {
    return Refuse("tensor ", ToAbsl(kEmbedding), ": shape [",
                  absl::StrJoin(embedding->dims, ", "),
                  "], want [embedding length, up to ", kMaxVocabulary, "]");
  }
  config.vocabulary = static_cast<int32_t>(embedding->dims[1]);
  KF_RETURN_IF_ERROR(ReadInt(file, "llama.vocab_size",
                             {config.vocabulary, config.vocabulary},
                             config.vocabulary)
                         .status());
  constexpr std::string_view kTokens = "tokenizer.ggml.tokens";
  if (!file.Has(kTokens)) return absl::OkStatus();
  KF_ASSIGN_OR_RETURN(const std::vector<std::string_view> tokens,
                      file.GetStrings(kTokens));
  if (tokens.size() != static_cast<size_t>(config.vocabulary)) {
    return Refuse("key ", ToAbsl(kTokens), ": ", tokens.size(),
                  " tokens, want ", config.vocabulary, " (", ToAbsl(kEmbedding),
                  ")");
  }
  return absl::OkStatus();
}

// Checks tensors off by name, shape and type; what is left over is unknown.
class TensorList {
 public:
  explicit TensorList(const GgufFile& file) : file_(file) {
    for (const GgufTensor& tensor : file.tensors()) left_.insert(tensor.name);
  }

  absl::Status Expect(const std::string& name,
                      const std::vector<int64_t>& dims) {
    KF_ASSIGN_OR_RETURN(const GgufTensor* tensor, RequireTensor(file_, name));
    if (tensor->dims != dims) {
      return Refuse("tensor ", name, ": shape [",
                    absl::StrJoin(tensor->dims, ", "), "], want [",
                    absl::StrJoin(dims, ", "), "]");
    }
    left_.erase(tensor->name);
    return absl::OkStatus();
  }

  absl::Status ExpectNoMore() const {
    if (left_.empty()) return absl::OkStatus();
    return Refuse("tensor ", GgufQuote(*left_.begin()),
                  " has no place in a llama decoder without biases and "
                  "experts");
  }

 private:
  const GgufFile& file_;
  std::set<std::string_view> left_;
};

absl::Status CheckTensors(const GgufFile& file, const ModelConfig& config) {
  const int64_t hidden = config.hidden;
  const int64_t ffn = config.ffn;
  const int64_t q_dim = int64_t{config.query_heads} * config.head_dim;
  const int64_t kv_dim = int64_t{config.kv_heads} * config.head_dim;
  struct LayerTensor {
    std::string_view name;
    std::vector<int64_t> dims;  // GGML order: [in, out]
  };
  const LayerTensor kLayerTensors[] = {
      {"attn_norm.weight", {hidden}},
      {"attn_q.weight", {hidden, q_dim}},
      {"attn_k.weight", {hidden, kv_dim}},
      {"attn_v.weight", {hidden, kv_dim}},
      {"attn_output.weight", {q_dim, hidden}},
      {"ffn_norm.weight", {hidden}},
      {"ffn_gate.weight", {hidden, ffn}},
      {"ffn_up.weight", {hidden, ffn}},
      {"ffn_down.weight", {ffn, hidden}},
  };
  TensorList list(file);
  KF_RETURN_IF_ERROR(
      list.Expect("token_embd.weight", {hidden, config.vocabulary}));
  for (int32_t layer = 0; layer < config.layers; ++layer) {
    for (const LayerTensor& tensor : kLayerTensors) {
      KF_RETURN_IF_ERROR(list.Expect(
          absl::StrCat("blk.", layer, ".", ToAbsl(tensor.name)), tensor.dims));
    }
  }
  KF_RETURN_IF_ERROR(list.Expect("output_norm.weight", {hidden}));
  if (!config.tied_output) {
    KF_RETURN_IF_ERROR(
        list.Expect("output.weight", {hidden, config.vocabulary}));
  }
  return list.ExpectNoMore();
}

}  // namespace

AttentionShape ModelConfig::attention_shape(DType cache_dtype) const {
  return {.query_heads = query_heads,
          .kv_heads = kv_heads,
          .head_dim = head_dim,
          .rotary_dim = rotary_dim,
          .rope_base = rope_base,
          .cache_dtype = cache_dtype};
}

absl::StatusOr<ModelConfig> ReadModelConfig(const GgufFile& file) {
  ModelConfig config;
  constexpr std::string_view kArchitecture = "general.architecture";
  KF_ASSIGN_OR_RETURN(const std::string_view architecture,
                      file.GetString(kArchitecture));
  if (architecture != "llama") {
    return Refuse("key ", ToAbsl(kArchitecture), ": ", GgufQuote(architecture),
                  " is not supported, want llama");
  }
  config.architecture = architecture;
  if (file.Has("general.name")) {
    KF_ASSIGN_OR_RETURN(const std::string_view name,
                        file.GetString("general.name"));
    config.name = absl::CHexEscape(ToAbsl(name));
  }
  KF_RETURN_IF_ERROR(CheckUnsupportedKeys(file));
  KF_RETURN_IF_ERROR(ReadSizes(file, config));
  KF_RETURN_IF_ERROR(ReadVocabulary(file, config));
  config.tied_output = !file.HasTensor("output.weight");
  KF_RETURN_IF_ERROR(CheckTensors(file, config));
  for (const GgufTensor& tensor : file.tensors()) {
    config.parameters += static_cast<uint64_t>(tensor.elements());
  }
  return config;
}

}  // namespace kf::engine
