// What ReadModelConfig makes of good files, and what it refuses.
#include "engine/model/model_config.h"

#include <array>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "tests/testing/default_model.h"
#include "tests/testing/gguf_writer.h"
#include "tests/testing/matchers.h"
#include "tests/testing/tiny_model.h"

namespace kf::engine {
namespace {

using absl::StatusCode;
using ::kf::testing::AddTinyMetadata;
using ::kf::testing::AsBytes;
using ::kf::testing::GgufWriter;
using ::kf::testing::IsOk;
using ::kf::testing::StatusIs;
using ::kf::testing::TinyModelBytes;
using ::kf::testing::TinyModelSpec;

absl::StatusOr<ModelConfig> ReadConfig(const std::string& bytes) {
  const auto file = GgufFile::Parse(AsBytes(bytes));
  if (!file.ok()) return file.status();
  return ReadModelConfig(**file);
}

TEST(ModelConfigTest, ReadsATinyModel) {
  const auto config = ReadConfig(TinyModelBytes({.seed = 9,
                                                 .layers = 3,
                                                 .heads = 6,
                                                 .kv_heads = 2,
                                                 .head_dim = 8,
                                                 .ffn = 40,
                                                 .context = 99}));
  ASSERT_THAT(config, IsOk());
  EXPECT_EQ(config->name, "tiny-9");
  EXPECT_EQ(config->architecture, "llama");
  EXPECT_EQ(config->layers, 3);
  EXPECT_EQ(config->hidden, 48);
  EXPECT_EQ(config->ffn, 40);
  EXPECT_EQ(config->query_heads, 6);
  EXPECT_EQ(config->kv_heads, 2);
  EXPECT_EQ(config->head_dim, 8);
  EXPECT_EQ(config->rotary_dim, 8);
  EXPECT_EQ(config->rope_base, 10000.0);
  EXPECT_EQ(config->norm_eps, 1e-5F);
  EXPECT_EQ(config->vocabulary, 258);
  EXPECT_EQ(config->context_tokens, 99);
  EXPECT_FALSE(config->tied_output);
  const uint64_t layer = 48 * (48 + 16 + 16 + 48) + 3 * 48 * 40 + 2 * 48;
  EXPECT_EQ(config->parameters, 3 * layer + 2 * 258 * 48 + 48);
  const AttentionShape shape = config->attention_shape(DType::kF32);
  EXPECT_EQ(shape.query_heads, 6);
  EXPECT_EQ(shape.kv_heads, 2);
  EXPECT_EQ(shape.head_dim, 8);
  EXPECT_EQ(shape.rotary_dim, 8);
  EXPECT_EQ(shape.rope_base, 10000.0);
  EXPECT_EQ(shape.cache_dtype, DType::kF32);
}

TEST(ModelConfigTest, AMissingOutputIsTheEmbedding) {
  const auto config = ReadConfig(TinyModelBytes({.tied = true}));
  ASSERT_THAT(config, IsOk());
  EXPECT_TRUE(config->tied_output);
}

TEST(ModelConfigTest, ReadsTheDefaultModel) {
  const auto file = GgufFile::Open(kf::testing::DefaultModelPath());
  ASSERT_THAT(file, IsOk());
  const auto config = ReadModelConfig(**file);
  ASSERT_THAT(config, IsOk());
  EXPECT_EQ(config->layers, 30);
  EXPECT_EQ(config->hidden, 576);
  EXPECT_EQ(config->ffn, 1536);
  EXPECT_EQ(config->query_heads, 9);
  EXPECT_EQ(config->kv_heads, 3);
  EXPECT_EQ(config->head_dim, 64);
  EXPECT_EQ(config->rotary_dim, 64);
  EXPECT_EQ(config->rope_base, 100000.0);
  EXPECT_EQ(config->norm_eps, 1e-5F);
  EXPECT_EQ(config->vocabulary, 49152);
  EXPECT_EQ(config->context_tokens, 8192);
  EXPECT_TRUE(config->tied_output);
  EXPECT_EQ(config->parameters, 134515008U);
}

// A model written key by key, so that a case can change any of them.
struct Draft {
  std::vector<std::pair<std::string, std::function<void(GgufWriter&)>>> keys;
  TinyModelSpec spec = {
      .layers = 1, .heads = 4, .kv_heads = 2, .head_dim = 4, .ffn = 8};
  std::function<void(GgufWriter&)> extra = [](GgufWriter&) {};

  Draft() {
    Set("general.architecture", std::string("llama"));
    Set("llama.context_length", 64U);
    Set("llama.embedding_length", 16U);
    Set("llama.block_count", 1U);
    Set("llama.feed_forward_length", 8U);
    Set("llama.attention.head_count", 4U);
    Set("llama.attention.head_count_kv", 2U);
    Set("llama.attention.layer_norm_rms_epsilon", 1e-5F);
  }
  void Remove(const std::string& key) {
    std::erase_if(keys, [&](const auto& entry) { return entry.first == key; });
  }
  void Set(const std::string& key, std::function<void(GgufWriter&)> write) {
    Remove(key);
    keys.emplace_back(key, std::move(write));
  }
  void Set(const std::string& key, uint32_t value) {
    Set(key, [=](GgufWriter& w) { w.AddUint32(key, value); });
  }
  void Set(const std::string& key, float value) {
    Set(key, [=](GgufWriter& w) { w.AddFloat32(key, value); });
  }
  void Set(const std::string& key, const std::string& value) {
    Set(key, [=](GgufWriter& w) { w.AddString(key, value); });
  }
  void Set(const std::string& key, bool value) {
    Set(key, [=](GgufWriter& w) { w.AddBool(key, value); });
  }
  std::string File() const {
    GgufWriter writer;
    for (const auto& [key, write] : keys) write(writer);
    AddTinyTensors(spec, writer);
    extra(writer);
    return writer.File();
  }
};

TEST(ModelConfigTest, AbsentKeysHaveDefaults) {
  Draft draft;
  draft.spec.kv_heads = 4;
  draft.Remove("llama.attention.head_count_kv");
  draft.Set("llama.rope.scaling.type", std::string("none"));
  draft.Set("llama.rope.scaling.factor", 1.0F);
  draft.Set("llama.expert_count", 0U);
  draft.Set("llama.attention.causal", true);
  const auto config = ReadConfig(draft.File());
  ASSERT_THAT(config, IsOk());
  EXPECT_EQ(config->kv_heads, 4);
  EXPECT_EQ(config->head_dim, 4);
  EXPECT_EQ(config->rotary_dim, 4);
  EXPECT_EQ(config->rope_base, 10000.0);
  EXPECT_EQ(config->vocabulary, 258);
  EXPECT_EQ(config->name, "");
}

// The embedding is 16 wide; 4 heads of 8 channels are 32.
TEST(ModelConfigTest, TheKeyLengthDecidesShapes) {
  Draft draft;
  draft.Set("llama.attention.key_length", 8U);
  draft.Set("llama.attention.value_length", 8U);
  draft.Set("llama.rope.dimension_count", 4U);
  EXPECT_THAT(ReadConfig(draft.File()),
              StatusIs(StatusCode::kInvalidArgument,
                       "tensor blk.0.attn_q.weight: shape [16, 16], want "
                       "[16, 32]"));
}

struct RefusedCase {
  std::string name;
  std::string part;  // of the message
  std::function<void(Draft&)> change;
};

void PrintTo(const RefusedCase& refused, std::ostream* out) {
  *out << refused.name;
}

class ModelConfigRefusalTest : public ::testing::TestWithParam<RefusedCase> {};

TEST_P(ModelConfigRefusalTest, NamesWhatIsWrong) {
  Draft draft;
  ASSERT_THAT(ReadConfig(draft.File()), IsOk());
  GetParam().change(draft);
  EXPECT_THAT(ReadConfig(draft.File()),
              StatusIs(StatusCode::kInvalidArgument, GetParam().part));
}

template <typename T>
RefusedCase Key(std::string name,
                std::string key,
                T value,
                const std::string& part) {
  return {std::move(name), key + part,
          [key, value](Draft& draft) { draft.Set(key, value); }};
}

std::vector<RefusedCase> KeyCases() {
  const std::string rope = "llama.rope.";
  const std::string attn = "llama.attention.";
  const std::string eps = attn + "layer_norm_rms_epsilon";
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const float inf = std::numeric_limits<float>::infinity();
  return {
      Key("Architecture", "general.architecture", std::string("gemma3"),
          ": gemma3 is not supported, want llama"),
      Key("NoLayers", "llama.block_count", 0U, ": 0, want 1 to 1024"),
      Key("ManyLayers", "llama.block_count", 1025U, ": 1025, want"),
      Key("HugeLayers", "llama.block_count", ~0U, ": 4294967295, want"),
      Key("TextLayers", "llama.block_count", std::string("3"),
          ": type string, want an integer"),
      Key("Hidden", "llama.embedding_length", 0U, ": 0, want 1 to"),
      Key("Ffn", "llama.feed_forward_length", 1U << 30, ": 1073741824, want"),
      Key("Context", "llama.context_length", (1U << 20) + 1,
          ": 1048577, want 1 to 1048576"),
      Key("NoHeads", attn + "head_count", 0U, ": 0, want 1 to"),
      Key("OddHeads", attn + "head_count", 6U,
          ": 6, want a divisor of the "
          "embedding length 16"),
      Key("KvHeads", attn + "head_count_kv", 3U, ": 3, want a divisor of"),
      Key("MoreKvHeads", attn + "head_count_kv", 8U, ": 8, want 1 to 4"),
      Key("KvHeadsArray", attn + "head_count_kv",
          std::function<void(GgufWriter&)>([](GgufWriter& w) {
            w.AddInt32s("llama.attention.head_count_kv",
                        std::array<int32_t, 1>{2});
          }),
          ": type int32 array, want a single value"),
      Key("WideHeads", attn + "key_length", 258U, ": 258, want 2 to 256"),
      Key("ValueLength", attn + "value_length", 8U, ": 8, want 4 to 4"),
      Key("RotaryTooLarge", rope + "dimension_count", 6U, ": 6, want 0 to 4"),
      Key("RotaryOdd", rope + "dimension_count", 3U, ": 3, want an even"),
      Key("RopeBaseNan", rope + "freq_base", nan, ": nan, want a number in"),
      Key("RopeBaseInf", rope + "freq_base", inf, ": inf, want a number in"),
      Key("RopeBaseZero", rope + "freq_base", 0.0F, ": 0, want a number in"),
      Key("EpsNegative", eps, -1.0F, ": -1, want a number in (0, 1]"),
      Key("EpsNan", eps, nan, ": nan, want a number in (0, 1]"),
      Key("RopeType", rope + "scaling.type", std::string("yarn"),
          ": yarn: rotary scaling is not supported"),
      Key("RopeFactor", rope + "scaling.factor", 4.0F,
          ": 4: rotary scaling is not supported"),
      Key("RopeLinear", rope + "scale_linear", 2.0F,
          ": 2: rotary scaling is not supported"),
      Key("Experts", "llama.expert_count", 8U, ": 8, want 0 to 0"),
      Key("Window", attn + "sliding_window", 4096U, ": 4096, want 0 to 0"),
      Key("NotCausal", attn + "causal", false, ": false, want true"),
      Key("Scale", attn + "scale", 0.5F, " is not supported"),
      Key("VocabSize", "llama.vocab_size", 300U, ": 300, want 258 to 258"),
      Key("Tokens", "tokenizer.ggml.tokens",
          std::function<void(GgufWriter&)>([](GgufWriter& w) {
            w.AddStrings("tokenizer.ggml.tokens",
                         std::array<std::string, 2>{"a", "b"});
          }),
          ": 2 tokens, want 258"),
  };
}

RefusedCase ExtraTensor(std::string name, const std::string& tensor) {
  return {std::move(name), "tensor " + tensor, [tensor](Draft& draft) {
            draft.extra = [tensor](GgufWriter& w) {
              w.AddTensorF32(tensor, std::array<uint64_t, 1>{2},
                             std::array<float, 2>{1, 2});
            };
          }};
}

std::vector<RefusedCase> TensorCases() {
  return {
      ExtraTensor("Bias", "blk.0.attn_q.bias"),
      ExtraTensor("Experts", "blk.0.ffn_gate_inp.weight"),
      ExtraTensor("RopeFreqs", "rope_freqs.weight"),
      ExtraTensor("UnknownTensor", "blk.0.strange.weight"),
      ExtraTensor("LayerTooMany", "blk.1.attn_q.weight"),
      {"MissingLayer", "tensor blk.1.attn_norm.weight is missing",
       [](Draft& d) { d.Set("llama.block_count", 2U); }},
      {"WrongFfn", "tensor blk.0.ffn_gate.weight: shape [16, 8], want [16, 12]",
       [](Draft& d) { d.Set("llama.feed_forward_length", 12U); }},
      {"WrongHidden", "tensor token_embd.weight: shape [16, 258], want [32",
       [](Draft& d) { d.Set("llama.embedding_length", 32U); }},
      {"WrongKvHeads", "tensor blk.0.attn_k.weight: shape [16, 8], want [16, 4",
       [](Draft& d) { d.Set("llama.attention.head_count_kv", 1U); }},
      {"OddHeadSize", "head size 1 ",
       [](Draft& d) { d.Set("llama.attention.head_count", 16U); }},
      {"MissingEps", "layer_norm_rms_epsilon is missing",
       [](Draft& d) { d.Remove("llama.attention.layer_norm_rms_epsilon"); }},
      {"MissingArchitecture", "key general.architecture is missing",
       [](Draft& d) { d.Remove("general.architecture"); }},
  };
}

std::string NameOfCase(const ::testing::TestParamInfo<RefusedCase>& refused) {
  return refused.param.name;
}

INSTANTIATE_TEST_SUITE_P(Keys,
                         ModelConfigRefusalTest,
                         ::testing::ValuesIn(KeyCases()),
                         NameOfCase);
INSTANTIATE_TEST_SUITE_P(Tensors,
                         ModelConfigRefusalTest,
                         ::testing::ValuesIn(TensorCases()),
                         NameOfCase);

TEST(ModelConfigTest, UnsupportedTensorTypesAreNamed) {
  GgufWriter writer;
  AddTinyMetadata({.layers = 1}, writer);
  writer.AddTensor("token_embd.weight", std::array<uint64_t, 2>{256, 258}, 10,
                   "");
  EXPECT_THAT(ReadConfig(writer.File()),
              StatusIs(StatusCode::kInvalidArgument,
                       "tensor token_embd.weight: type 10 (Q2_K) is not"));
}

TEST(ModelConfigTest, AVocabularyAloneIsNoModel) {
  GgufWriter writer;
  AddTinyMetadata({}, writer);
  EXPECT_THAT(ReadConfig(writer.File()),
              StatusIs(StatusCode::kInvalidArgument,
                       "tensor token_embd.weight is missing"));
}

TEST(ModelConfigTest, TheNameIsFitForLogs) {
  Draft draft;
  draft.Set("general.name", std::string("a\nb\xff"));
  const auto config = ReadConfig(draft.File());
  ASSERT_THAT(config, IsOk());
  EXPECT_EQ(config->name, "a\\nb\\xff");
}

}  // namespace
}  // namespace kf::engine
