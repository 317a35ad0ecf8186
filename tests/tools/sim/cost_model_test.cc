#include "tools/sim/cost_model.h"

#include <gtest/gtest.h>

#include "tests/tools/sim/sim_support.h"
#include "tools/sim/specs.h"

namespace kf::sim {
namespace {

// q 4x4, k and v 4x2 each, o 4x4: 48; ffn 2 x 4x6: 48.
TEST(CostModelTest, BytesByHand) {
  const CostModel cost(TinyDevice(), TinyModel());
  EXPECT_EQ(cost.weight_bytes(), 2 * (2 * 96 + 2 * 40));
  EXPECT_EQ(cost.token_bytes(), 2 * 2 * 2);      // K and V, 2 of bf16
  EXPECT_EQ(cost.page_bytes(), 16 * (8 + 8));    // position and score
  EXPECT_EQ(cost.workspace_bytes(), 8 + 4 * 4);  // hidden states in f32
}

TEST(CostModelTest, TiedOutputIsOneMatrix) {
  ModelSpec model = TinyModel();
  model.tied_output = true;
  EXPECT_EQ(CostModel(TinyDevice(), model).weight_bytes(), 2 * (2 * 96 + 40));
}

// 3 rows, of which each reads 5 tokens in both layers; 10 tokens are scored.
TEST(CostModelTest, DecodeStepByHand) {
  const CostModel cost(TinyDevice(), TinyModel());
  const Work work = cost.Decode({.rows = 3,
                                 .read_tokens = 30,
                                 .attended_tokens = 30,
                                 .scored_tokens = 10});
  // Weights once without the embedding, 30 tokens read, 3 x 2 written, and 12
  // bytes of position and score for each scored token.
  EXPECT_EQ(work.bytes, 2 * (2 * 96 + 40) + 30 * 8 + 6 * 8 + 10 * 12);
  // Two multiply-adds of q and K, V for each of 2 heads x 2 channels.
  EXPECT_EQ(work.tensor_flops, 2 * (2 * 96 + 40) * 3 + 4 * 4 * 30);
  EXPECT_EQ(work.vector_flops, 2 * (8 * 30 + 32 * 10));
}

// Rows that have common keys read them once, and multiply with them all.
TEST(CostModelTest, WhatIsReadMovesAndWhatIsAttendedIsComputed) {
  const CostModel cost(TinyDevice(), TinyModel());
  const Work all =
      cost.Decode({.rows = 3, .read_tokens = 30, .attended_tokens = 30});
  const Work common =
      cost.Decode({.rows = 3, .read_tokens = 12, .attended_tokens = 30});
  EXPECT_EQ(common.bytes, all.bytes - 18 * 8);
  EXPECT_EQ(common.tensor_flops, all.tensor_flops);
  EXPECT_EQ(common.vector_flops, all.vector_flops);
}

// The same rows fed again: all but the output matrix.
TEST(CostModelTest, AReplayWantsNoLogits) {
  const CostModel cost(TinyDevice(), TinyModel());
  const DecodeWork rows{.rows = 3, .read_tokens = 30, .attended_tokens = 30};
  const Work decode = cost.Decode(rows);
  const Work replay = cost.Replay(rows);
  EXPECT_EQ(replay.bytes, decode.bytes - 2 * 40);
  EXPECT_EQ(replay.tensor_flops, decode.tensor_flops - 2 * 40 * 3);
  EXPECT_EQ(replay.vector_flops, decode.vector_flops);
}

// Only the rows from 34 on are scored.
TEST(CostModelTest, RowsThatAreNotScoredCostNoScores) {
  PromptWork work;
  work.Add(32, 4, /*first_scored=*/34);
  EXPECT_EQ(work.pairs, 33 + 34 + 35 + 36);
  EXPECT_EQ(work.scored_pairs, 35 + 36);
  work.Add(0, 34, /*first_scored=*/34);
  EXPECT_EQ(work.scored_pairs, 35 + 36);
}

// Rows 32 to 35 of one prompt, 0 to 1 of another with scores.
TEST(CostModelTest, PromptCallByHand) {
  const CostModel cost(TinyDevice(), TinyModel());
  PromptWork work;
  work.Add(32, 4, /*first_scored=*/100);
  work.Add(0, 2, /*first_scored=*/0);
  EXPECT_EQ(work.rows, 6);
  EXPECT_EQ(work.pairs, 33 + 34 + 35 + 36 + 1 + 2);
  EXPECT_EQ(work.scored_pairs, 3);
  EXPECT_EQ(work.held_tokens, 36 + 2);
  Work call = cost.Prompt(work);
  EXPECT_EQ(call.bytes, 2 * 96 + 38 * 8 + 6 * 8);
  EXPECT_EQ(call.tensor_flops, 2 * 96 * 6 + 4 * 4 * 141);
  EXPECT_EQ(call.vector_flops, 2 * (8 * 141 + 32 * 3));
  work.logit_rows = 1;
  EXPECT_EQ(cost.Prompt(work).bytes, call.bytes + 2 * 40);
  EXPECT_EQ(cost.Prompt(work).tensor_flops, call.tensor_flops + 2 * 40);
}

TEST(CostModelTest, TheSlowerOfMemoryAndComputeOverTheEfficiency) {
  const CostModel cost(TinyDevice(), TinyModel());
  EXPECT_DOUBLE_EQ(cost.Seconds({.bytes = 500.0, .tensor_flops = 10.0}), 1.0);
  EXPECT_DOUBLE_EQ(cost.Seconds({.bytes = 5.0, .tensor_flops = 1e4}), 2.0);
  // Tensor and vector units take turns.
  EXPECT_DOUBLE_EQ(
      cost.Seconds({.bytes = 5, .tensor_flops = 1e4, .vector_flops = 250}),
      3.0);
}

TEST(CostModelTest, EightBitWeightsUseTheEightBitRate) {
  ModelSpec model = TinyModel();
  model.weight_bytes = 1;
  const CostModel cost(TinyDevice(), model);
  EXPECT_DOUBLE_EQ(cost.Seconds({.tensor_flops = 1e4}), 1.0);
}

// 6.65 and 8.03 billion parameters, as published.
TEST(CostModelTest, PublishedModelsHaveTheirPublishedSizes) {
  const auto device = FindDevice("a100-80gb");
  ASSERT_TRUE(device.ok());
  const auto bytes = [&](const char* name) {
    return CostModel(*device, *FindModel(name)).weight_bytes();
  };
  EXPECT_NEAR(bytes("mpt-7b") / 2, 6.65e9, 0.01e9);
  EXPECT_NEAR(bytes("llama-8b") / 2, 8.03e9, 0.01e9);
  EXPECT_NEAR(bytes("llama-8b-fp8"), 8.03e9, 0.01e9);
  // 0.5 MiB a token of all layers.
  EXPECT_EQ(CostModel(*device, *FindModel("mpt-7b")).token_bytes() * 32,
            512 * 1024);
}

TEST(DecodeWorkTest, QuestReadsItsPagesAndTheirBounds) {
  engine::RequestSizes sizes;
  sizes.rules.sizes = {{1000, 1000}};
  sizes.rules.read_pages = 4;
  sizes.rules.full_layers = 1;
  const DecodeWork work = DecodeWorkOf(sizes, /*layers=*/3, /*held=*/160);
  EXPECT_EQ(work.read_tokens, 160 + 2 * (4 * 16 + 10));
  EXPECT_EQ(work.scored_tokens, 0);
}

TEST(DecodeWorkTest, ScoredPoliciesScoreWhatTheyRead) {
  engine::RequestSizes sizes;
  sizes.rules.sizes = {{100, 30}};
  sizes.rules.scored = true;
  const DecodeWork work = DecodeWorkOf(sizes, /*layers=*/3, /*held=*/101);
  EXPECT_EQ(work.read_tokens, 303);
  EXPECT_EQ(work.scored_tokens, 303);
}

}  // namespace
}  // namespace kf::sim
