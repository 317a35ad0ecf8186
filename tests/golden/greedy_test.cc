// The default model, exact path, nothing evicted: the token ids of
// tests/data/smollm2_greedy_f32.json.
#include <fstream>

#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tests/golden/golden_support.h"
#include "tests/testing/default_model.h"

namespace kf::testing {
namespace {

TEST(GreedyTest, DefaultModelInF32) {
  std::ifstream in(KF_SOURCE_DIR "/tests/data/smollm2_greedy_f32.json");
  const nlohmann::json vectors = nlohmann::json::parse(in);
  ASSERT_EQ(vectors.size(), 3U);
  std::vector<engine::Request> requests;
  std::vector<std::vector<engine::TokenId>> want;
  for (const nlohmann::json& v : vectors) {
    engine::Request& r = requests.emplace_back();
    v.at("prompt_ids").get_to(r.prompt);
    v.at("new_ids").get_to(want.emplace_back());
    ASSERT_EQ(want.back().size(), 64U);
    r.stopping.max_new_tokens = 64;
    r.stopping.ignore_eos = true;
    r.cache.policy = engine::CachePolicy::kFull;
  }
  EngineSetup setup;
  setup.model_path = DefaultModelPath();
  const auto engine = MakeEngine(std::move(setup));
  const std::vector<Outcome> got = RunTogether(*engine, requests);
  for (size_t i = 0; i < want.size(); ++i) {
    EXPECT_TRUE(got[i].status.ok()) << got[i].status;
    EXPECT_EQ(got[i].tokens, want[i]) << "prompt " << i;
    EXPECT_EQ(got[i].finish_reason, engine::FinishReason::kLength);
  }
}

}  // namespace
}  // namespace kf::testing
