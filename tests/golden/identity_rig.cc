#include "tests/golden/identity_rig.h"

#include "kernels/backend.h"
#include "kernels/cpu/simd_level.h"
#include "kernels/ref/ref_backend.h"
#include "tests/testing/tiny_model.h"

namespace kf::testing {

using engine::CacheState;
using engine::Request;

std::vector<std::string> BackendNames() {
  std::vector<std::string> names = {"reference"};
  for (const cpu::SimdLevel level : cpu::AvailableSimdLevels()) {
    names.emplace_back(cpu::NameOf(level));
  }
  return names;
}

std::unique_ptr<Backend> MakeBackend(const std::string& name) {
  if (name == "reference") return CreateReferenceBackend();
  auto made = CreateBackend({.name = "cpu", .threads = 2, .simd = name});
  EXPECT_TRUE(made.ok()) << made.status();
  return made.ok() ? *std::move(made) : nullptr;
}

std::string NameOfBackend(
    const ::testing::TestParamInfo<std::string>& backend) {
  return backend.param;
}

KeptPositions Positions(const CacheState& state) {
  KeptPositions result;
  for (const auto& layer : state) {
    auto& heads = result.emplace_back();
    for (const HeldTokens& head : layer) heads.push_back(head.positions);
  }
  return result;
}

void ExpectSameKept(const Outcome& a, const Outcome& b) {
  EXPECT_EQ(a.tokens, b.tokens);
  EXPECT_EQ(Positions(a.report.after_prompt), Positions(b.report.after_prompt));
  EXPECT_EQ(Positions(a.report.at_end), Positions(b.report.at_end));
}

void ExpectSameBits(const Outcome& a, const Outcome& b) {
  ExpectSameKept(a, b);
  EXPECT_EQ(a.logprobs, b.logprobs);
  const auto expect_same_scores = [](const CacheState& x, const CacheState& y) {
    ASSERT_EQ(x.size(), y.size());
    for (size_t layer = 0; layer < x.size(); ++layer) {
      ASSERT_EQ(x[layer].size(), y[layer].size());
      for (size_t g = 0; g < x[layer].size(); ++g) {
        EXPECT_EQ(x[layer][g].scores, y[layer][g].scores);
      }
    }
  };
  expect_same_scores(a.report.after_prompt, b.report.after_prompt);
  expect_same_scores(a.report.at_end, b.report.at_end);
}

IdentityRig::IdentityRig()
    : model_path_(WriteTinyModel({.seed = 3,
                                  .layers = kLayers,
                                  .heads = kHeads,
                                  .kv_heads = kKvHeads,
                                  .head_dim = 16,
                                  .ffn = 128,
                                  .context = 512},
                                 folder_.File("tiny.gguf"))) {}

void IdentityRig::ExpectBatchAndSlicesChangeNoBit(
    const std::function<EngineSetup()>& make_setup,
    const std::vector<engine::Request>& requests) {
  engine_ = MakeEngine(make_setup());
  const std::vector<Outcome> together = RunAll(requests);
  for (size_t i = 0; i < requests.size(); ++i) {
    ExpectSameBits(Run(requests[i]), together[i]);
  }
  for (const int32_t slice : {32, 96}) {
    EngineSetup setup = make_setup();
    setup.prefill_slice_tokens = slice;
    engine_ = MakeEngine(std::move(setup));
    const std::vector<Outcome> sliced = RunAll(requests);
    for (size_t i = 0; i < requests.size(); ++i) {
      ExpectSameBits(sliced[i], together[i]);
    }
  }
}

EngineSetup IdentityRig::BackendSetup() const {
  EngineSetup setup;
  setup.model_path = model_path_;
  setup.kv_pool_bytes = 1 << 26;
  const ::testing::TestInfo* const test =
      ::testing::UnitTest::GetInstance()->current_test_info();
  if (test->value_param() != nullptr) setup.backend = MakeBackend(GetParam());
  return setup;
}

Request IdentityRig::MakeRequest(int32_t n, uint32_t salt) {
  Request r;
  for (int32_t i = 0; i < n; ++i) {
    r.prompt.push_back(static_cast<engine::TokenId>(
        MixBits(static_cast<uint32_t>(i) + 1000 * salt) % 256));
  }
  r.stopping.max_new_tokens = kNew;
  r.stopping.ignore_eos = true;
  r.output.logprobs = true;
  r.cache_report = engine::CacheReportDetail::kFull;
  r.cache.min_tokens = 1;
  r.cache.noise_seed = 17;
  return r;
}

std::vector<Request> IdentityRig::Variants(int32_t n) {
  using engine::ScoreNorm;
  using engine::SelectionScope;
  std::vector<Request> variants;
  for (const SelectionScope scope :
       {SelectionScope::kHead, SelectionScope::kLayer,
        SelectionScope::kModel}) {
    for (const ScoreNorm norm : {ScoreNorm::kNone, ScoreNorm::kAge}) {
      Request& r = variants.emplace_back(MakeRequest(n));
      r.cache.scope = scope;
      r.cache.score_norm = norm;
    }
  }
  return variants;
}

std::vector<Outcome> IdentityRig::RunAll(
    const std::vector<Request>& requests) const {
  std::vector<Outcome> outcomes = RunTogether(*engine_, requests);
  for (const Outcome& outcome : outcomes) {
    EXPECT_TRUE(outcome.status.ok()) << outcome.status;
  }
  return outcomes;
}

}  // namespace kf::testing
