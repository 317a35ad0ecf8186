// One request at a time through the whole engine.
#include "engine/engine.h"

#include <gtest/gtest.h>

#include <fstream>
#include <string>

#include "kernels/ref/ref_backend.h"
#include "tests/engine/core/engine_harness.h"
#include "tests/testing/matchers.h"

namespace kf::engine {
namespace {

using ::kf::testing::StatusIs;

TEST(EngineTest, GreedyAnswerIsRepeatable) {
  TestEngine engine;
  const Outcome first = engine.Run(MakeRequest(1, 40, 20));
  const Outcome second = engine.Run(MakeRequest(1, 40, 20));
  EXPECT_EQ(first.tokens.size(), 20U);
  EXPECT_EQ(first.finish_reason, FinishReason::kLength);
  EXPECT_EQ(first.firsts, 1);
  EXPECT_EQ(first.logprobs.size(), 20U);
  EXPECT_TRUE(SameAnswer(first, second));
  engine.ExpectNothingHeld();
}

TEST(EngineTest, CpuAndReferenceAgree) {
  TestEngine cpu;
  TestEngine reference({.backend = CreateReferenceBackend()});
  const Request request = MakeKeyformerRequest(3, 60, 40, 24, 6);
  const Outcome a = cpu.Run(request);
  const Outcome b = reference.Run(request);
  EXPECT_EQ(a.tokens, b.tokens);
  ASSERT_EQ(a.logprobs.size(), b.logprobs.size());
  for (size_t i = 0; i < a.logprobs.size(); ++i) {
    EXPECT_NEAR(a.logprobs[i].logprob, b.logprobs[i].logprob, 1e-4);
  }
}

// The file beside the model says what is on offer, or why there is no engine.
TEST(EngineTest, LayerProfilesStandBesideTheModel) {
  testing::TempDir dir;
  const std::string model = testing::WriteTinyModel({}, dir.File("m.gguf"));
  std::ofstream(LayerProfilesPath(model))
      << R"({"profiles": {"late": {"weights": [0.5, 1.5]}}})";
  TestEngine engine({.options = TinyOptions(model)});
  EXPECT_EQ(engine->layer_profiles(),
            (LayerProfiles{{"late", {0.5, 1.5}}, {"uniform", {}}}));

  std::ofstream(LayerProfilesPath(model))
      << R"({"profiles": {"late": {"weights": [0.5, 1.0, 1.5]}}})";
  const SteadyClock clock;
  EXPECT_THAT(
      Engine::Create(TinyOptions(model), clock, nullptr).status(),
      StatusIs(absl::StatusCode::kInvalidArgument,
               "m.gguf.profiles.json: profiles.late.weights: 3 numbers"));
  EngineOptions options = TinyOptions(model);
  options.layer_profiles_path = dir.File("another.json");
  EXPECT_THAT(Engine::Create(options, clock, nullptr).status(),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       "another.json: no such file"));
}

// What a pool of a given size holds is counted with it: rows of 8 bits are
// padded to words.
TEST(EngineTest, KvBytesAreThoseThatAreStored) {
  constexpr uint64_t kPositionAndScore = 8;
  for (const int32_t head_dim : {16, 18}) {
    for (const DType cache : {DType::kF32, DType::kBF16, DType::kI8}) {
      testing::TinyModelSpec spec;
      spec.head_dim = head_dim;
      EngineOptions options = TinyOptions("");
      options.cache_dtype = cache;
      TestEngine engine({.spec = spec, .options = options});
      const EngineStats stats = engine->Stats();
      const auto slots = static_cast<uint64_t>(stats.pages_total) * kPageTokens;
      const auto layers = static_cast<uint64_t>(spec.layers);
      EXPECT_EQ(engine->kv_bytes_per_token() / layers,
                engine->options().kv_pool_bytes / slots -
                    kPositionAndScore * static_cast<uint64_t>(spec.kv_heads))
          << head_dim << " " << static_cast<int>(cache);
      const auto d = static_cast<uint64_t>(head_dim);
      const uint64_t row = cache == DType::kF32    ? 4 * d
                           : cache == DType::kBF16 ? 2 * d
                                                   : (d + 3) / 4 * 4 + 4;
      EXPECT_EQ(engine->kv_bytes_per_token(),
                2 * layers * static_cast<uint64_t>(spec.kv_heads) * row);
    }
  }
}

TEST(EngineTest, RandomWeightsOfAShapeAnswer) {
  const testing::TempDir dir;
  const std::string config = dir.File("config.json");
  std::ofstream(config)
      << R"({"hidden_size": 64, "num_hidden_layers": 2, "vocab_size": 300,
             "num_attention_heads": 4, "intermediate_size": 96,
             "max_position_embeddings": 128})";
  EngineOptions options = TinyOptions("");
  options.load_format = LoadFormat::kDummy;
  options.model_config = config;
  TestEngine first({.options = options});
  TestEngine second({.options = options});
  const Request request = MakeKeyformerRequest(1, 40, 20, 16, 4);
  const Outcome answer = first.Run(request);
  EXPECT_EQ(answer.tokens.size(), 20U);
  EXPECT_TRUE(SameAnswer(answer, second.Run(request)));
}

}  // namespace
}  // namespace kf::engine
