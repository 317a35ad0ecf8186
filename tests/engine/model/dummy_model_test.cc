// Models of random weights: shapes that are read and refused, the numbers, and
// the vocabulary.
#include "engine/model/dummy_model.h"

#include <cmath>
#include <fstream>
#include <string>
#include <vector>

#include "engine/model/dummy_shape.h"
#include "engine/model/gguf_parse.h"
#include "engine/tokenizer/tokenizer.h"
#include "tests/testing/matchers.h"
#include "tests/testing/temp_dir.h"
#include "tests/testing/tiny_model.h"

namespace kf::engine {
namespace {

using absl::StatusCode;
using ::kf::testing::IsOk;
using ::kf::testing::StatusIs;
using ::kf::testing::TempDir;
using ::kf::testing::WriteTinyModel;

constexpr char kSmall[] =
    R"({"model_type": "llama", "hidden_size": 96, "num_hidden_layers": 3,
        "num_attention_heads": 6, "num_key_value_heads": 2,
        "intermediate_size": 200, "vocab_size": 300,
        "max_position_embeddings": 64, "torch_dtype": "bfloat16"})";

std::string Write(const TempDir& dir, const std::string& text) {
  std::string path = dir.File("config.json");
  std::ofstream(path) << text;
  return path;
}

// kSmall with `field` given a value; an empty one takes the field out.
std::string Changed(const std::string& field, const std::string& value) {
  std::string text = kSmall;
  const size_t at = text.find('"' + field + '"');
  if (at != text.npos) {
    const size_t end = text.find_first_of(",}", at);
    text.erase(at, end - at + (text[end] == ',' ? 1 : 0));
  }
  if (!value.empty()) text.insert(1, '"' + field + "\": " + value + ", ");
  return text;
}

TEST(DummyShape, PresetsHaveTheModelsSizes) {
  struct Case {
    const char* name;
    uint64_t parameters;  // elements of all tensors
    int64_t kv_values_per_token;
  };
  for (const Case& c : {Case{"llama-8b", 8030261248, 2 * 32 * 8 * 128},
                        Case{"mpt-7b-shape", 6657675264, 2 * 32 * 32 * 128},
                        Case{"smollm2-135m", 134515008, 2 * 30 * 3 * 64}}) {
    SCOPED_TRACE(c.name);
    const auto model = DummyModel::Open(c.name);
    ASSERT_THAT(model, IsOk());
    const auto config = ReadModelConfig((*model)->file());
    ASSERT_THAT(config, IsOk());
    EXPECT_EQ(config->parameters, c.parameters);
    EXPECT_EQ(2 * int64_t{config->layers} * config->kv_heads * config->head_dim,
              c.kv_values_per_token);
    const auto tokenizer = Tokenizer::Load((*model)->tokenizer_file());
    ASSERT_THAT(tokenizer, IsOk());
    EXPECT_EQ((*tokenizer)->size(), config->vocabulary);
  }
}

TEST(DummyShape, ReadsAConfigJson) {
  const TempDir dir;
  const auto shape = ReadDummyShape(Write(dir, kSmall));
  ASSERT_THAT(shape, IsOk());
  EXPECT_EQ(shape->hidden, 96);
  EXPECT_EQ(shape->head_dim, 16);
  EXPECT_EQ(shape->rotary_dim, 16);
  EXPECT_EQ(shape->kv_heads, 2);
  EXPECT_EQ(shape->rope_base, 10000.0);
  EXPECT_FALSE(shape->tied_output);
}

TEST(DummyShape, RefusesByField) {
  struct Case {
    const char* field;
    const char* value;
    const char* error;
  };
  const TempDir dir;
  for (const Case& c :
       {Case{"hidden_size", "", "hidden_size: missing"},
        Case{"hidden_size", "0", "hidden_size: 0, want"},
        Case{"num_hidden_layers", "1025", "num_hidden_layers: 1025, want"},
        Case{"num_hidden_layers", "2.5", "num_hidden_layers: 2.5, want"},
        Case{"num_attention_heads", "\"6\"", "num_attention_heads: \"6\""},
        Case{"num_key_value_heads", "4", "want a divisor of num_attention_he"},
        Case{"num_attention_heads", "5", "num_key_value_heads: 2, want"},
        Case{"head_dim", "17", "head_dim: 17, want an even number"},
        Case{"vocab_size", "257", "vocab_size: 257, want at least 258"},
        Case{"rope_theta", "-1", "rope_theta: -1, want"},
        Case{"rms_norm_eps", "2", "rms_norm_eps: 2, want"},
        Case{"rope_scaling", "{\"type\": \"linear\"}", "rope_scaling: {"},
        Case{"attention_bias", "true", "attention_bias: true, want false"},
        Case{"tie_word_embeddings", "1", "tie_word_embeddings: 1, want"},
        Case{"model_type", "\"gptj\"",
             "model_type: \"gptj\", want \"llama\""}}) {
    SCOPED_TRACE(c.field);
    const auto model = DummyModel::Open(Write(dir, Changed(c.field, c.value)));
    EXPECT_THAT(model, StatusIs(StatusCode::kInvalidArgument, c.error));
  }
  EXPECT_THAT(DummyModel::Open(Write(dir, "[1]")),
              StatusIs(StatusCode::kInvalidArgument, "no JSON object"));
  EXPECT_THAT(DummyModel::Open(Write(dir, "layers: 4")),
              StatusIs(StatusCode::kInvalidArgument, "neither a GGUF"));
  EXPECT_THAT(DummyModel::Open("llama-9b"),
              StatusIs(StatusCode::kNotFound, "\"llama-9b\" is no file"));
}

// Mean and deviation of a matrix, its last value and one past the shared block
// included; norms are 1.
TEST(DummyModel, NumbersAreSane) {
  const auto model = DummyModel::Open("smollm2-135m");
  ASSERT_THAT(model, IsOk());
  const GgufFile& file = (*model)->file();
  double sum = 0.0;
  double squares = 0.0;
  int64_t count = 0;
  for (const GgufTensor& tensor : file.tensors()) {
    std::vector<float> values(static_cast<size_t>(tensor.elements()));
    Dequantize(tensor.type, tensor.data, tensor.elements(), values.data());
    if (tensor.dims.size() == 1) {
      for (const float value : values) ASSERT_EQ(value, 1.0F) << tensor.name;
      continue;
    }
    for (const float value : values) {
      ASSERT_LE(std::abs(value), 0.0348F) << tensor.name;
      sum += static_cast<double>(value);
      squares += static_cast<double>(value) * static_cast<double>(value);
    }
    count += tensor.elements();
  }
  EXPECT_NEAR(sum / static_cast<double>(count), 0.0, 1e-5);
  EXPECT_NEAR(std::sqrt(squares / static_cast<double>(count)), 0.02, 1e-4);
}

TEST(DummyModel, ItsTokensAreTheBytesAndWords) {
  const TempDir dir;
  const auto model = DummyModel::Open(Write(dir, kSmall));
  ASSERT_THAT(model, IsOk());
  const auto tokenizer = Tokenizer::Load((*model)->tokenizer_file());
  ASSERT_THAT(tokenizer, IsOk());
  const auto encoded = (*tokenizer)->Encode("a 258 b", {});
  ASSERT_THAT(encoded, IsOk());
  EXPECT_EQ(encoded->ids,
            (std::vector<TokenId>{'a', ' ', '2', '5', '8', ' ', 'b'}));
  EXPECT_EQ((*tokenizer)->Decode(std::vector<TokenId>{258, 'x'}, false),
            " 258x");
  EXPECT_TRUE((*tokenizer)->IsEndOfGeneration(257));
}

// A GGUF file gives shape and vocabulary, and none of its weights.
TEST(DummyModel, TakesAGgufFilesShapeAndVocabulary) {
  const TempDir dir;
  const std::string path = WriteTinyModel({.layers = 1}, dir.File("m.gguf"));
  const auto real = GgufFile::Open(path);
  ASSERT_THAT(real, IsOk());
  const auto model = DummyModel::Open(path);
  ASSERT_THAT(model, IsOk());
  const auto want = ReadModelConfig(**real);
  const auto config = ReadModelConfig((*model)->file());
  ASSERT_THAT(config, IsOk());
  EXPECT_EQ(config->parameters, want->parameters);
  EXPECT_EQ(config->context_tokens, want->context_tokens);
  EXPECT_FALSE((*model)->file().Has("tokenizer.ggml.tokens"));
  EXPECT_THAT(Tokenizer::Load((*model)->tokenizer_file()), IsOk());
  const auto norm = (*model)->file().Tensor("blk.0.attn_norm.weight");
  ASSERT_THAT(norm, IsOk());
  EXPECT_EQ(GgufLoad<float>((*norm)->data), 1.0F);
}

}  // namespace
}  // namespace kf::engine
