// The plain twin itself, against values worked out by hand; and its traps, each
// of which must change what is held.
#include <cmath>
#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/core/bf16.h"
#include "kernels/ref/ref_backend.h"
#include "tests/kernels/attention_rig.h"

namespace kf::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::FloatNear;

TEST(Reference, LinearRoundsForBf16) {
  const auto backend = CreateReferenceBackend();
  const float w[] = {1.0F, 2.0F, 1.00390625F, -1.0F};  // 2 x 2
  const float x[] = {1.0F, 3.00390625F};
  const WeightView view = {DType::kF32, 2, 2,
                           reinterpret_cast<const std::byte*>(w)};
  float out[2];
  auto f32 = backend->LoadLinear({&view, 1}, WeightFormat::kF32);
  ASSERT_TRUE(f32.ok());
  ASSERT_TRUE(backend->Linear(**f32, x, 1, out).ok());
  EXPECT_FLOAT_EQ(out[0], 7.0078125F);
  EXPECT_FLOAT_EQ(out[1], -2.0F);
  // 1 + 2^-8 is half way between bf16 numbers: to the even one, 1; and
  // 3 + 2^-8 becomes 3.
  auto bf16 = backend->LoadLinear({&view, 1}, WeightFormat::kBF16);
  ASSERT_TRUE(bf16.ok());
  ASSERT_TRUE(backend->Linear(**bf16, x, 1, out).ok());
  EXPECT_FLOAT_EQ(out[0], 7.0F);
  EXPECT_FLOAT_EQ(out[1], -2.0F);
  ASSERT_TRUE(backend->LinearAdd(**bf16, x, 1, out).ok());
  EXPECT_FLOAT_EQ(out[0], 14.0F);
}

TEST(Reference, RmsNormAndSwiGlu) {
  const auto backend = CreateReferenceBackend();
  const float x[] = {3.0F, 4.0F, 0.0F, 0.0F};
  const float weight[] = {1.0F, 2.0F, 1.0F, 1.0F};
  float out[4];
  ASSERT_TRUE(backend->RmsNorm(x, weight, 0.0F, 1, 4, out).ok());
  EXPECT_THAT(out, ElementsAre(FloatNear(1.2F, 1e-6F), FloatNear(3.2F, 1e-6F),
                               0.0F, 0.0F));
  ASSERT_TRUE(backend->SwiGlu(x, 1, 2, out).ok());
  EXPECT_EQ(out[0], 0.0F);
  const float y[] = {1.0F, 2.0F};
  ASSERT_TRUE(backend->SwiGlu(y, 1, 1, out).ok());
  EXPECT_NEAR(out[0], 2.0 / (1.0 + std::exp(-1.0)), 1e-6);
}

TEST(Reference, RefusesImpossibleAllocations) {
  const auto backend = CreateReferenceBackend();
  const auto buffer = backend->Allocate(size_t{1} << 60, "the pool");
  EXPECT_EQ(buffer.status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_NE(buffer.status().ToString().find("the pool"), std::string::npos);
}

// Two tokens of one head with d = 2: softmax, rotation and scores by hand.
TEST(Reference, AttentionByHand) {
  const auto backend = CreateReferenceBackend();
  const AttentionShape shape = {1, 1, 2, 2, 10000.0, DType::kF32};
  auto pool = NanBuffer(*backend, backend->PageBytes(shape));
  const int32_t page = 0;
  // Rows [q | k | v]: the second token turns by one radian.
  float qkv[] = {1, 0, 1, 0, 1, 2, 0, 1, 1, 0, 3, 4};
  float out[4];
  const PromptAttentionItem item = {
      .prompt_tokens = 2,
      .first_row = 0,
      .rows = 2,
      .keys = {pool->data(), {&page, 1}},
      .score = {true, NoiseKind::kNone, false, 0, 0, 2.0F}};
  ASSERT_TRUE(
      backend
          ->PromptAttention(
              {.shape = shape, .qkv = qkv, .out = out, .items = {&item, 1}})
          .ok());
  // q1 = (-sin 1, cos 1), k0 = (1, 0), k1 = (cos 1, sin 1): q1 . k0 = -sin 1,
  // q1 . k1 = 0.
  const double x0 = -std::sin(1.0) / std::sqrt(2.0);
  const double p0 = std::exp(x0) / (std::exp(x0) + 1.0);
  EXPECT_FLOAT_EQ(out[0], 1.0F);
  EXPECT_FLOAT_EQ(out[1], 2.0F);
  EXPECT_NEAR(out[2], p0 * 1.0 + (1.0 - p0) * 3.0, 1e-6);
  EXPECT_NEAR(out[3], p0 * 2.0 + (1.0 - p0) * 4.0, 1e-6);
  const double s0 = std::exp(x0 / 2.0) / (std::exp(x0 / 2.0) + 1.0);
  const int32_t free_slot = 2;
  const auto held =
      backend->ReadHeld(shape, {pool->data(), {&page, 1}}, 2, &free_slot);
  ASSERT_TRUE(held.ok());
  EXPECT_THAT((*held)[0].positions, ElementsAre(0, 1));
  EXPECT_NEAR((*held)[0].scores[0], 1.0 + s0, 1e-6);
  EXPECT_NEAR((*held)[0].scores[1], 1.0 - s0, 1e-6);
}

SequenceOptions TrapOptions(int32_t recent) {
  SequenceOptions o;
  o.shape = {2, 1, 16, 16, 10000.0, DType::kF32};
  o.prompt = 60;
  o.budget = 30;
  o.recent = recent;
  o.score = {true, NoiseKind::kGumbel, false, 5, 0, 1.0F};
  o.max_steps = 60;
  // Few prompt rows count, so that generated tokens can compete.
  o.score_first_row = 56;
  return o;
}

struct HeldOverTime {
  std::vector<int32_t> after_prompt;
  std::vector<int32_t> at_end;
  std::vector<float> scores;
};

HeldOverTime RunTrap(Trap trap, int32_t recent) {
  const auto backend = CreateReferenceBackend(trap);
  Sequence s(*backend, TrapOptions(recent));
  s.PrefillAll(4096);
  s.Compact();
  HeldOverTime result;
  const std::vector<HeldTokens> held = s.Held();
  result.after_prompt = held[0].positions;
  result.scores = held[0].scores;
  for (int32_t i = 0; i < 60; ++i) s.StepAlone();
  result.at_end = s.Held()[0].positions;
  return result;
}

int CountAtLeast(const std::vector<int32_t>& positions, int32_t from) {
  int count = 0;
  for (const int32_t p : positions) count += p >= from;
  return count;
}

TEST(Traps, DropLeavingWindow) {
  const HeldOverTime right = RunTrap(Trap::kNone, 10);
  const HeldOverTime wrong = RunTrap(Trap::kDropLeavingWindow, 10);
  // Right: generated tokens that left the window displaced prompt tokens.
  EXPECT_GT(CountAtLeast(right.at_end, 60), 12);
  EXPECT_EQ(CountAtLeast(wrong.at_end, 60), 10);
  // In the prompt too, the token before the window had no chance.
  EXPECT_EQ(CountAtLeast(wrong.after_prompt, 49), 10);
}

TEST(Traps, FrozenKeys) {
  const HeldOverTime right = RunTrap(Trap::kNone, 10);
  const HeldOverTime wrong = RunTrap(Trap::kFrozenKeys, 10);
  EXPECT_EQ(right.after_prompt, wrong.after_prompt);
  EXPECT_EQ(CountAtLeast(wrong.at_end, 60), 10);
  for (int i = 0; i < 20; ++i) {
    EXPECT_EQ(wrong.at_end[static_cast<size_t>(i)],
              wrong.after_prompt[static_cast<size_t>(i)]);
  }
}

TEST(Traps, RecentZeroOff) {
  EXPECT_EQ(RunTrap(Trap::kNone, 0).at_end.size(), 30U);
  const HeldOverTime wrong = RunTrap(Trap::kRecentZeroOff, 0);
  EXPECT_EQ(wrong.after_prompt.size(), 60U);
  EXPECT_EQ(wrong.at_end.size(), 120U);
  EXPECT_EQ(RunTrap(Trap::kRecentZeroOff, 1).at_end,
            RunTrap(Trap::kNone, 1).at_end);
}

TEST(Traps, Bf16Scores) {
  const auto rounded = [](const std::vector<float>& scores) {
    int count = 0;
    for (const float s : scores) count += s == Bf16ToFloat(FloatToBf16(s));
    return count;
  };
  EXPECT_EQ(rounded(RunTrap(Trap::kBf16Scores, 10).scores), 30);
  EXPECT_LT(rounded(RunTrap(Trap::kNone, 10).scores), 5);
}

}  // namespace
}  // namespace kf::testing
