#include "engine/model/dummy_shape.h"

#include <filesystem>
#include <fstream>
#include <initializer_list>
#include <nlohmann/json.hpp>
#include <optional>
#include <string_view>

#include "absl/strings/str_cat.h"
#include "engine/model/gguf.h"
#include "kernels/core/status.h"

namespace kf::engine {
namespace {

using Json = nlohmann::json;

// A model's configuration is a page; more is not one.
constexpr uintmax_t kMaxConfigBytes = 1 << 20;

ModelConfig Llama8b() {
  ModelConfig shape;
  shape.layers = 32;
  shape.hidden = 4096;
  shape.ffn = 14336;
  shape.query_heads = 32;
  shape.kv_heads = 8;
  shape.head_dim = 128;
  shape.rotary_dim = 128;
  shape.rope_base = 500000.0;
  shape.vocabulary = 128256;
  shape.context_tokens = 8192;
  return shape;
}

// MPT's two matrices of 4 x hidden are three of 2.67 x hidden here, rounded up
// to a multiple of 64.
ModelConfig Mpt7bShape() {
  ModelConfig shape = Llama8b();
  shape.ffn = 10944;
  shape.kv_heads = 32;
  shape.rope_base = 10000.0;
  shape.vocabulary = 50432;
  shape.tied_output = true;
  return shape;
}

ModelConfig Smollm2() {
  ModelConfig shape;
  shape.layers = 30;
  shape.hidden = 576;
  shape.ffn = 1536;
  shape.query_heads = 9;
  shape.kv_heads = 3;
  shape.head_dim = 64;
  shape.rotary_dim = 64;
  shape.rope_base = 100000.0;
  shape.vocabulary = 49152;
  shape.context_tokens = 8192;
  shape.tied_output = true;
  return shape;
}

template <typename... Args>
absl::Status Wrong(const Args&... args) {
  return absl::InvalidArgumentError(absl::StrCat(args...));
}

absl::StatusOr<int32_t> IntField(const Json& json,
                                 const char* field,
                                 int32_t max,
                                 std::optional<int32_t> fallback = {}) {
  const auto it = json.find(field);
  if (it == json.end() || it->is_null()) {
    if (fallback.has_value()) return *fallback;
    return Wrong(field, ": missing, want a whole number from 1 to ", max);
  }
  if (!it->is_number_integer() || *it < 1 || *it > max) {
    return Wrong(field, ": ", it->dump().substr(0, 64),
                 ", want a whole number from 1 to ", max);
  }
  return it->get<int32_t>();
}

absl::StatusOr<double> PositiveField(const Json& json,
                                     const char* field,
                                     double max,
                                     double fallback) {
  const auto it = json.find(field);
  if (it == json.end() || it->is_null()) return fallback;
  if (!it->is_number() || !(*it > 0.0) || *it > max) {
    return Wrong(field, ": ", it->dump().substr(0, 64),
                 ", want a number in (0, ", max, "]");
  }
  return it->get<double>();
}

// Fields that would make it another decoder: absent, null, or the one value
// that ours has.
absl::Status SameField(const Json& json,
                       const char* field,
                       std::initializer_list<Json> same) {
  const auto it = json.find(field);
  if (it == json.end() || it->is_null()) return absl::OkStatus();
  for (const Json& value : same) {
    if (*it == value) return absl::OkStatus();
  }
  return Wrong(field, ": ", it->dump().substr(0, 64), ", want ",
               same.begin()->dump());
}

absl::Status HeadFields(const Json& json, ModelConfig& shape) {
  KF_ASSIGN_OR_RETURN(shape.query_heads,
                      IntField(json, "num_attention_heads", kMaxHeads));
  KF_ASSIGN_OR_RETURN(shape.kv_heads,
                      IntField(json, "num_key_value_heads", shape.query_heads,
                               shape.query_heads));
  if (shape.query_heads % shape.kv_heads != 0) {
    return Wrong("num_key_value_heads: ", shape.kv_heads,
                 ", want a divisor of num_attention_heads ", shape.query_heads);
  }
  std::optional<int32_t> even_share;
  if (shape.hidden % shape.query_heads == 0) {
    even_share = shape.hidden / shape.query_heads;
  }
  KF_ASSIGN_OR_RETURN(shape.head_dim,
                      IntField(json, "head_dim", kMaxHeadDim, even_share));
  if (shape.head_dim % 2 != 0 || shape.head_dim > kMaxHeadDim) {
    return Wrong("head_dim: ", shape.head_dim, ", want an even number up to ",
                 kMaxHeadDim);
  }
  shape.rotary_dim = shape.head_dim;
  return absl::OkStatus();
}

absl::StatusOr<ModelConfig> ShapeOfJson(const Json& json) {
  if (!json.is_object()) return Wrong("no JSON object");
  KF_RETURN_IF_ERROR(SameField(json, "model_type", {"llama"}));
  KF_RETURN_IF_ERROR(SameField(json, "hidden_act", {"silu"}));
  KF_RETURN_IF_ERROR(SameField(json, "rope_scaling", {nullptr}));
  KF_RETURN_IF_ERROR(SameField(json, "attention_bias", {false}));
  KF_RETURN_IF_ERROR(SameField(json, "mlp_bias", {false}));
  ModelConfig shape;
  KF_ASSIGN_OR_RETURN(shape.hidden, IntField(json, "hidden_size", kMaxHidden));
  KF_ASSIGN_OR_RETURN(shape.layers,
                      IntField(json, "num_hidden_layers", kMaxLayers));
  KF_ASSIGN_OR_RETURN(shape.ffn, IntField(json, "intermediate_size", kMaxFfn));
  KF_ASSIGN_OR_RETURN(shape.vocabulary,
                      IntField(json, "vocab_size", kMaxVocabulary));
  KF_ASSIGN_OR_RETURN(shape.context_tokens,
                      IntField(json, "max_position_embeddings", kMaxContext));
  KF_RETURN_IF_ERROR(HeadFields(json, shape));
  KF_ASSIGN_OR_RETURN(shape.rope_base,
                      PositiveField(json, "rope_theta", 1e12, 10000.0));
  KF_ASSIGN_OR_RETURN(const double eps,
                      PositiveField(json, "rms_norm_eps", 1.0, 1e-5));
  shape.norm_eps = static_cast<float>(eps);
  const auto tied = json.find("tie_word_embeddings");
  if (tied != json.end() && !tied->is_null()) {
    if (!tied->is_boolean()) {
      return Wrong("tie_word_embeddings: ", tied->dump().substr(0, 64),
                   ", want true or false");
    }
    shape.tied_output = tied->get<bool>();
  }
  return shape;
}

absl::StatusOr<ModelConfig> ShapeOfJsonFile(const std::string& path) {
  std::error_code error;
  const uintmax_t bytes = std::filesystem::file_size(path, error);
  if (error || bytes > kMaxConfigBytes) {
    return Wrong("no file of at most ", kMaxConfigBytes, " bytes");
  }
  std::ifstream in(path, std::ios::binary);
  const Json json = Json::parse(in, nullptr, /*allow_exceptions=*/false);
  if (json.is_discarded()) return Wrong("neither a GGUF file nor JSON");
  return ShapeOfJson(json);
}

bool IsGguf(const std::string& path) {
  char magic[4] = {};
  std::ifstream in(path, std::ios::binary);
  in.read(magic, sizeof(magic));
  return in.gcount() == sizeof(magic) &&
         std::string_view(magic, sizeof(magic)) == "GGUF";
}

absl::StatusOr<ModelConfig> ShapeOfFile(const std::string& path) {
  if (!IsGguf(path)) return ShapeOfJsonFile(path);
  KF_ASSIGN_OR_RETURN(const auto file, GgufFile::Open(path));
  return ReadModelConfig(*file);
}

}  // namespace

absl::StatusOr<ModelConfig> ReadDummyShape(const std::string& model_config) {
  if (model_config == "llama-8b") return Llama8b();
  if (model_config == "mpt-7b-shape") return Mpt7bShape();
  if (model_config == "smollm2-135m") return Smollm2();
  std::error_code error;
  if (!std::filesystem::exists(model_config, error)) {
    return absl::NotFoundError(absl::StrCat(
        "model_config: \"", model_config,
        "\" is no file, want one, llama-8b, mpt-7b-shape or smollm2-135m"));
  }
  auto shape = ShapeOfFile(model_config);
  if (shape.ok()) return shape;
  return absl::InvalidArgumentError(absl::StrCat(
      "model_config: ", model_config, ": ", shape.status().message()));
}

}  // namespace kf::engine
