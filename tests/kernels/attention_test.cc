// The CPU's attention against its plain twin: outputs, scores and kept sets at
// every SIMD level, in both cache types.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>
#include <memory>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/backend.h"
#include "kernels/ref/ref_backend.h"
#include "tests/kernels/attention_rig.h"

namespace kf::testing {
namespace {

// Sums of some hundred f32 products against sums in double; logits of outliers
// reach hundreds, and their rounding grows through exp.
constexpr double kOutputTolerance = 3e-5;  // of the largest |V|
constexpr double kScoreTolerance = 1e-4;   // relative
constexpr double kOutlierFactor = 30.0;

struct Case {
  const char* name;
  int32_t query_heads;
  int32_t kv_heads;
  int32_t head_dim;
  int32_t rotary_dim;
  int32_t prompt;
  int32_t budget;
  int32_t recent;
  int32_t steps;
  NoiseKind noise = NoiseKind::kGumbel;
  float tau = 1.0F;
  float decode_tau = 1.25F;
  float outliers = 1.0F;
  int32_t score_first_row = 0;
  bool resample_once = false;
  bool add_scores = true;
  bool scored = true;
};

constexpr NoiseKind kNone = NoiseKind::kNone;
constexpr NoiseKind kConstant = NoiseKind::kConstant;
constexpr NoiseKind kGumbel = NoiseKind::kGumbel;
constexpr NoiseKind kGaussian = NoiseKind::kGaussian;

const Case kCases[] = {
    {"OneKey", 3, 1, 64, 64, 1, 1, 0, 4},
    {"OneKeyWindow", 3, 1, 64, 64, 1, 1, 1, 4},
    {"Fifteen", 9, 3, 64, 64, 15, 7, 2, 20},
    {"Sixteen", 9, 3, 64, 64, 16, 8, 0, 20},
    {"Seventeen", 9, 3, 64, 64, 17, 16, 16, 20},
    {"ThirtyOne", 4, 4, 32, 32, 31, 15, 14, 20},
    {"ThirtyTwo", 8, 2, 16, 16, 32, 31, 5, 20},
    {"ThirtyThree", 8, 1, 96, 96, 33, 16, 4, 40},
    {"SixtyFive", 10, 2, 80, 80, 65, 32, 9, 40},
    {"Long", 4, 2, 128, 128, 200, 100, 30, 40},
    {"PartRotary", 6, 2, 80, 20, 70, 35, 10, 20},
    {"NoRotary", 7, 1, 64, 0, 70, 35, 10, 20},
    {"OddWidth", 2, 1, 26, 14, 40, 20, 3, 20},
    {"Tiny", 2, 2, 2, 2, 40, 20, 3, 20},
    {"ChunkBefore", 3, 1, 64, 64, 262, 255, 70, 8},
    {"ChunkAt", 3, 1, 64, 64, 262, 256, 70, 8},
    {"ChunkAfter", 3, 1, 64, 64, 262, 257, 70, 8},
    {"LargestChunk", 3, 1, 64, 64, 380, 367, 70, 8},
    {"SmallestTwoChunks", 3, 1, 64, 64, 380, 368, 70, 8},
    {"TwoChunks", 5, 1, 32, 32, 620, 600, 100, 8},
    {"ThreeChunks", 5, 1, 32, 32, 720, 700, 100, 8},
    {"Growing", 3, 1, 64, 64, 10, 40, 10, 60},
    {"NothingEvicted", 3, 1, 64, 64, 50, 90, 10, 30},
    {"Full", 3, 1, 64, 64, 50, 200, 0, 30, kNone, 1.0F, 1.0F, 1.0F, 0, false,
     true, false},
    {"PureWindow", 3, 1, 64, 64, 60, 30, 30, 40},
    {"AllButOneRecent", 3, 1, 64, 64, 60, 30, 29, 40},
    {"BudgetOne", 3, 1, 64, 64, 60, 1, 0, 10},
    {"BudgetOneRecent", 3, 1, 64, 64, 60, 1, 1, 10},
    {"Plain", 9, 3, 64, 64, 90, 45, 13, 30, kNone, 1.0F, 1.0F},
    {"Constant", 9, 3, 64, 64, 90, 45, 13, 30, kConstant},
    {"Gaussian", 9, 3, 64, 64, 90, 45, 13, 30, kGaussian, 1.0F, 1.5F},
    {"WarmNone", 9, 3, 64, 64, 90, 45, 13, 30, kNone, 1.7F, 2.0F},
    {"WarmGumbel", 9, 3, 64, 64, 90, 45, 13, 30, kGumbel, 1.5F, 2.0F},
    {"UnitDecode", 9, 3, 64, 64, 90, 45, 13, 30, kGumbel, 1.0F, 1.0F},
    {"Cool", 9, 3, 64, 64, 90, 45, 13, 30, kGumbel, 0.3F, 0.26F},
    {"Outliers", 9, 3, 64, 64, 90, 45, 13, 30, kGumbel, 1.0F, 1.25F, 20.0F},
    {"LastRows", 3, 1, 64, 64, 100, 50, 13, 30, kGumbel, 1.0F, 1.25F, 1.0F, 77},
    {"NoRows", 3, 1, 64, 64, 100, 50, 13, 30, kGumbel, 1.0F, 1.25F, 1.0F, 100},
    {"Once", 3, 1, 64, 64, 100, 50, 13, 30, kGumbel, 1.0F, 1.25F, 1.0F, 0,
     true},
    {"PromptScores", 3, 1, 64, 64, 100, 50, 13, 30, kGumbel, 1.0F, 1.25F, 1.0F,
     0, false, false},
};

SequenceOptions OptionsOf(const Case& c, DType dtype) {
  SequenceOptions o;
  o.shape = {c.query_heads, c.kv_heads, c.head_dim,
             c.rotary_dim,  10000.0,    dtype};
  o.prompt = c.prompt;
  o.budget = c.budget;
  o.recent = c.recent;
  o.layer = 5;
  o.score = {c.scored, c.noise, c.resample_once, 0x123456789ABCDEFULL,
             0,        c.tau};
  o.score_first_row = c.score_first_row;
  o.decode_tau = c.decode_tau;
  o.add_scores = c.add_scores;
  o.max_steps = c.steps;
  o.outliers = c.outliers;
  return o;
}

double Largest(const std::vector<float>& values) {
  double top = 0.0;
  for (const float v : values) {
    top = std::max(top, std::abs(static_cast<double>(v)));
  }
  return top;
}

void ExpectOutputs(const std::vector<float>& got,
                   const std::vector<float>& want,
                   double tolerance) {
  ASSERT_EQ(got.size(), want.size());
  ASSERT_GT(Largest(want), 1e-3) << "the expected output is trivial";
  const double limit = tolerance * std::max(1.0, Largest(want));
  for (size_t i = 0; i < got.size(); ++i) {
    // Not EXPECT_NEAR alone: a NaN must fail.
    ASSERT_TRUE(std::abs(static_cast<double>(got[i]) -
                         static_cast<double>(want[i])) <= limit)
        << "at " << i << ": " << got[i] << ", want " << want[i];
  }
}

void ExpectHeld(const std::vector<HeldTokens>& got,
                const std::vector<HeldTokens>& want,
                double tolerance) {
  ASSERT_EQ(got.size(), want.size());
  for (size_t g = 0; g < got.size(); ++g) {
    ASSERT_EQ(got[g].positions, want[g].positions) << "kv head " << g;
    for (size_t i = 0; i < got[g].scores.size(); ++i) {
      const auto a = static_cast<double>(got[g].scores[i]);
      const auto b = static_cast<double>(want[g].scores[i]);
      ASSERT_TRUE(std::abs(a - b) <= tolerance * std::abs(b) + 1e-9)
          << "kv head " << g << ", position " << got[g].positions[i] << ": "
          << a << ", want " << b;
    }
  }
}

// What the reference gives: computed once for all levels.
const Trace& ReferenceTrace(const std::string& name,
                            const SequenceOptions& options) {
  static auto& traces =
      *new std::map<std::pair<std::string, DType>, Trace>();  // never freed
  const auto [it, added] =
      traces.try_emplace({name, options.shape.cache_dtype});
  if (added) {
    it->second = RunAlone(*CreateReferenceBackend(), options, 4096);
  }
  return it->second;
}

void ExpectAgreement(Backend& backend,
                     const std::string& name,
                     const SequenceOptions& options) {
  SCOPED_TRACE(name);
  const double factor = options.outliers > 1.0F ? kOutlierFactor : 1.0;
  // Rounding of x + zeta counts 1 / tau times.
  const double score_tolerance =
      kScoreTolerance * factor *
      std::max(1.0, 1.0 / static_cast<double>(options.decode_tau));
  const Trace& want = ReferenceTrace(name, options);
  const Trace got = RunAlone(backend, options, 4096);
  ExpectOutputs(got.prompt_out, want.prompt_out, kOutputTolerance * factor);
  ExpectHeld(got.held[0], want.held[0], score_tolerance);
  ASSERT_EQ(got.step_out.size(), want.step_out.size());
  for (size_t step = 0; step < want.step_out.size(); ++step) {
    SCOPED_TRACE(step);
    ExpectOutputs(got.step_out[step], want.step_out[step],
                  kOutputTolerance * factor);
    ExpectHeld(got.held[step + 1], want.held[step + 1], score_tolerance);
    if (::testing::Test::HasFatalFailure()) return;
  }
}

class AttentionTest
    : public ::testing::TestWithParam<std::tuple<std::string, DType>> {};

TEST_P(AttentionTest, AgreesWithReference) {
  const auto& [simd, dtype] = GetParam();
  const auto cpu = MakeCpu(simd);
  for (const Case& c : kCases) {
    ExpectAgreement(*cpu, c.name, OptionsOf(c, dtype));
    if (HasFatalFailure()) return;
  }
}

// What policies may ask for, each over all shapes.
struct Variant {
  const char* name;
  void (*apply)(SequenceOptions& options);
};

void ReadPages(SequenceOptions& options, int32_t pages) {
  options.score.enabled = false;
  options.budget = options.prompt + options.max_steps;
  options.quest = true;
  options.read_pages = pages;
}

const Variant kVariants[] = {
    {"Age", [](SequenceOptions& o) { o.age = true; }},
    {"AgeLastRows",
     [](SequenceOptions& o) {
       o.age = true;
       o.score_first_row = o.prompt * 2 / 3;
     }},
    {"AgePromptScores",
     [](SequenceOptions& o) {
       o.age = true;
       o.add_scores = false;
     }},
    {"Deferred", [](SequenceOptions& o) { o.defer = true; }},
    {"Shared", [](SequenceOptions& o) { o.defer = o.shared = true; }},
    {"SharedAge",
     [](SequenceOptions& o) { o.defer = o.shared = o.age = true; }},
    {"InPlace", [](SequenceOptions& o) { o.in_place = true; }},
    {"InPlaceShared",
     [](SequenceOptions& o) { o.in_place = o.defer = o.shared = true; }},
    {"Factor", [](SequenceOptions& o) { o.score_factor = 3.0F; }},
    {"Rank", [](SequenceOptions& o) { o.rank_positions = true; }},
    {"RankShared",
     [](SequenceOptions& o) { o.rank_positions = o.defer = o.shared = true; }},
    {"Window",
     [](SequenceOptions& o) {
       o.score.enabled = false;
       o.recent = o.budget - std::min(4, o.budget - 1);
     }},
    {"QuestOne", [](SequenceOptions& o) { ReadPages(o, 1); }},
    {"QuestTwo", [](SequenceOptions& o) { ReadPages(o, 2); }},
    {"QuestMany", [](SequenceOptions& o) { ReadPages(o, 17); }},
    {"QuestAll", [](SequenceOptions& o) { ReadPages(o, 0); }},
};

TEST_P(AttentionTest, VariantsAgreeWithReference) {
  const auto& [simd, dtype] = GetParam();
  const auto cpu = MakeCpu(simd);
  const Case shapes[] = {
      {"d64", 3, 1, 64, 64, 16, 7, 0, 20},
      {"d80", 8, 1, 80, 80, 33, 16, 16, 20},
      {"d96", 8, 4, 96, 96, 70, 17, 5, 20},
      {"d128", 6, 2, 128, 128, 262, 255, 70, 4},
      {"part", 2, 2, 64, 20, 300, 257, 0, 6},
      {"odd", 4, 2, 26, 14, 10, 30, 9, 40},
      {"one", 2, 2, 16, 16, 20, 1, 0, 8},
      {"none", 2, 1, 32, 0, 49, 20, 6, 8},
  };
  for (const Variant& variant : kVariants) {
    for (const Case& c : shapes) {
      SequenceOptions options = OptionsOf(c, dtype);
      variant.apply(options);
      ExpectAgreement(*cpu, std::string(variant.name) + "/" + c.name, options);
      if (HasFatalFailure()) return;
    }
  }
}

bool SameBits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() &&
         std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

// While nothing has left, a rank is a position: in f32 rotating K when it is
// read gives the bits of rotating it when it is stored. Afterwards it differs.
TEST(RankPositions, ArePositionsUntilSomethingLeaves) {
  for (const std::string& simd : SimdLevelNames()) {
    SCOPED_TRACE(simd);
    const auto cpu = MakeCpu(simd);
    SequenceOptions options =
        OptionsOf({"", 6, 2, 80, 40, 290, 300, 40, 14}, DType::kF32);
    const Trace original = RunAlone(*cpu, options, 64);
    options.rank_positions = true;
    const Trace ranked = RunAlone(*cpu, options, 64);
    EXPECT_TRUE(SameBits(ranked.prompt_out, original.prompt_out));
    for (size_t step = 0; step <= 10; ++step) {
      EXPECT_TRUE(SameBits(ranked.step_out[step], original.step_out[step]));
      for (size_t g = 0; g < 2; ++g) {
        EXPECT_TRUE(SameBits(ranked.held[step][g].scores,
                             original.held[step][g].scores));
      }
    }
    EXPECT_FALSE(SameBits(ranked.step_out[13], original.step_out[13]));
  }
}

// Reading as many pages as there are, or more, is the full policy.
TEST_P(AttentionTest, QuestThatReadsAllIsFull) {
  const auto& [simd, dtype] = GetParam();
  const auto cpu = MakeCpu(simd);
  SequenceOptions options =
      OptionsOf({"", 6, 2, 64, 64, 290, 310, 0, 20}, dtype);
  options.score.enabled = false;
  const Trace full = RunAlone(*cpu, options, 4096);
  options.quest = true;
  for (const int32_t pages : {0, 20, 100}) {
    options.read_pages = pages;
    const Trace quest = RunAlone(*cpu, options, 4096);
    for (size_t step = 0; step < 20; ++step) {
      EXPECT_TRUE(SameBits(quest.step_out[step], full.step_out[step])) << pages;
    }
  }
  options.read_pages = 18;
  const Trace fewer = RunAlone(*cpu, options, 4096);
  EXPECT_FALSE(SameBits(fewer.step_out[0], full.step_out[0]));
}

// One head each: a shared choice is the head's own.
TEST_P(AttentionTest, SharedByOneHeadIsItsOwn) {
  const auto& [simd, dtype] = GetParam();
  const auto cpu = MakeCpu(simd);
  SequenceOptions options =
      OptionsOf({"", 3, 1, 64, 64, 90, 45, 13, 30}, dtype);
  options.age = true;
  const Trace own = RunAlone(*cpu, options, 4096);
  options.defer = options.shared = true;
  const Trace shared = RunAlone(*cpu, options, 4096);
  for (size_t step = 0; step < own.step_out.size(); ++step) {
    EXPECT_TRUE(SameBits(shared.step_out[step], own.step_out[step]));
    EXPECT_EQ(shared.held[step + 1][0].positions,
              own.held[step + 1][0].positions);
    EXPECT_TRUE(SameBits(shared.held[step + 1][0].scores,
                         own.held[step + 1][0].scores));
  }
}

// A tau near 0 gives all weight to the largest x + zeta; nothing overflows.
TEST_P(AttentionTest, SmallTau) {
  const auto& [simd, dtype] = GetParam();
  const auto cpu = MakeCpu(simd);
  for (const float tau : {0.2F, 1e-3F, 1e-20F, 1e-40F}) {
    for (const NoiseKind noise : {kNone, kConstant, kGumbel, kGaussian}) {
      SequenceOptions options = OptionsOf(
          {"", 2, 1, 32, 32, 300, 280, 20, 3, noise, tau, tau}, dtype);
      Sequence sequence(*cpu, options);
      sequence.PrefillAll(4096);
      sequence.Compact();
      const std::vector<HeldTokens> prompt = sequence.Held();
      double sum = 0.0;
      for (const float s : prompt[0].scores) {
        // Each of 300 rows gives a key at most 1 a query head.
        ASSERT_TRUE(s >= 0.0F && s <= 600.01F) << s << ", tau " << tau;
        sum += static_cast<double>(s);
      }
      ASSERT_GT(sum, 1.0);
      sequence.StepAlone();
      const std::vector<HeldTokens> step = sequence.Held();
      for (const float s : step[0].scores) {
        ASSERT_TRUE(s >= 0.0F && s <= 602.01F) << s << ", tau " << tau;
      }
    }
  }
}

// Keys of two chunks that share the weight of a step of tau 0.001: x + zeta is
// 1000 for each of them, within 2^-11. The logits, 2 x / sqrt(4), are exact, so
// only what is added to them later can lose the 1e-3 that decide.
TEST(SmallTauTest, ChunksShareTheWeight) {
  constexpr int32_t kPrompt = 400;
  constexpr uint32_t kSeed = 77;
  SequenceOptions options;
  options.shape = {1, 1, 4, 0, 10000.0, DType::kF32};
  options.prompt = kPrompt;
  options.budget = kPrompt + 1;
  options.score = {true, kGumbel, false, kSeed, 0, 1.0F};
  options.score_first_row = kPrompt;
  options.decode_tau = 1e-3F;
  options.max_steps = 1;
  const NoiseRow noise = MakeNoiseRow(kSeed, kPrompt, 0, 0, 0);
  options.rows = [&](int32_t position) {
    const double zeta =
        NoiseZeta(kGumbel, noise, static_cast<uint32_t>(position));
    // The others are e^-1000 and less.
    const double x = position % 25 == 3 ? 1000.0 - zeta : 980.0;
    const double k = std::round(x * 1024.0) / 1024.0;
    return std::vector<float>{2.0F,
                              0.0F,
                              0.0F,
                              0.0F,  // q
                              static_cast<float>(k),
                              0.0F,
                              0.0F,
                              0.0F,
                              1.0F,
                              2.0F,
                              3.0F,
                              4.0F};
  };
  const auto scores = [&options](Backend& backend) {
    Sequence sequence(backend, options);
    sequence.PrefillAll(4096);
    sequence.Compact();
    sequence.StepAlone();
    return sequence.Held();
  };
  const std::vector<HeldTokens> want = scores(*CreateReferenceBackend());
  int sharers = 0;
  for (const float s : want[0].scores) sharers += s > 0.01F;
  ASSERT_EQ(sharers, kPrompt / 25);
  for (const std::string& simd : SimdLevelNames()) {
    SCOPED_TRACE(simd);
    // What zeta may be off by in fast code, over tau: 1e-3 in practice.
    ExpectHeld(scores(*MakeCpu(simd)), want, 3e-3);
  }
}

INSTANTIATE_TEST_SUITE_P(
    Levels,
    AttentionTest,
    ::testing::Combine(
        ::testing::ValuesIn(SimdLevelNames()),
        ::testing::Values(DType::kF32, DType::kBF16, DType::kI8)),
    [](const auto& param_info) {
      return std::get<0>(param_info.param) + "_" +
             std::string(NameOf(std::get<1>(param_info.param)));
    });

}  // namespace
}  // namespace kf::testing
