// The tiny models themselves: golden vectors hold their hash, so their bits may
// not change with the compiler or the machine.
#include "tests/testing/tiny_model.h"

#include "engine/model/gguf.h"
#include "engine/model/model_config.h"
#include "tests/testing/matchers.h"

namespace kf::testing {
namespace {

// FNV-1a, 64 bits.
uint64_t HashOf(const std::string& bytes) {
  uint64_t hash = 0xCBF29CE484222325U;
  for (const char c : bytes) {
    hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001B3U;
  }
  return hash;
}

TEST(TinyModelTest, TheBitsNeverChange) {
  EXPECT_EQ(HashOf(TinyModelBytes({})), 14046639533304717325U);
  EXPECT_EQ(HashOf(TinyModelBytes({.seed = 7,
                                   .layers = 3,
                                   .heads = 6,
                                   .kv_heads = 3,
                                   .head_dim = 8,
                                   .ffn = 48,
                                   .context = 64,
                                   .tied = true,
                                   .chat_template = false})),
            8091511618002169980U);
}

std::vector<float> WeightsOf(const TinyModelSpec& spec, std::string_view name) {
  const std::string bytes = TinyModelBytes(spec);
  const auto file = engine::GgufFile::Parse(AsBytes(bytes));
  EXPECT_THAT(file, IsOk());
  const auto tensor = (*file)->Tensor(name);
  EXPECT_THAT(tensor, IsOk());
  EXPECT_EQ((*tensor)->type, spec.weight_type);
  std::vector<float> weights(static_cast<size_t>((*tensor)->elements()));
  Dequantize((*tensor)->type, (*tensor)->data, (*tensor)->elements(),
             weights.data());
  return weights;
}

TEST(TinyModelTest, WeightsAreNearlyNormal) {
  const std::vector<float> weights = WeightsOf({}, "token_embd.weight");
  double sum = 0.0;
  double squares = 0.0;
  for (const float w : weights) {
    sum += static_cast<double>(w);
    squares += static_cast<double>(w) * static_cast<double>(w);
  }
  const double count = static_cast<double>(weights.size());
  EXPECT_NEAR(sum / count, 0.0, 0.03);
  EXPECT_NEAR(squares / count, 1.0, 0.03);
}

TEST(TinyModelTest, NarrowTypesHoldTheSameWeightsRounded) {
  const char kName[] = "blk.1.ffn_up.weight";
  const std::vector<float> exact = WeightsOf({}, kName);
  // Half of the last place: 2^-11 and 2^-8; the absolute part is for half's
  // subnormals.
  EXPECT_THAT(WeightsOf({.weight_type = DType::kF16}, kName),
              NearRef(exact, 0x1p-11, 0x1p-25));
  EXPECT_THAT(WeightsOf({.weight_type = DType::kBF16}, kName),
              NearRef(exact, 0x1p-8, 0.0));
  EXPECT_NE(WeightsOf({.weight_type = DType::kF16}, kName), exact);
}

TEST(TinyModelTest, SeedsGiveDifferentWeights) {
  EXPECT_NE(WeightsOf({.seed = 1}, "output.weight"),
            WeightsOf({.seed = 2}, "output.weight"));
}

}  // namespace
}  // namespace kf::testing
