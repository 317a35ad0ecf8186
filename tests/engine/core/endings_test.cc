// How a sequence ends, and what its text and ids are then. The model is steered
// with logit biases far above its own logits.
#include <gtest/gtest.h>

#include <map>
#include <string>

#include "tests/engine/core/engine_harness.h"
#include "tests/testing/matchers.h"

namespace kf::engine {
namespace {

class EndingsTest : public ::testing::Test {
 protected:
  // Chooses the id with the largest bias, which falls by `fall` each time that
  // it is chosen.
  static Request Steered(const std::map<TokenId, double>& biases,
                         double fall,
                         uint32_t max_new_tokens) {
    Request request = MakeRequest(1, 10, max_new_tokens);
    request.sampling.logit_bias = biases;
    request.sampling.frequency_penalty = fall;
    request.stopping.ignore_eos = false;
    return request;
  }
  // abababab...
  static Request Alternating(uint32_t max_new_tokens) {
    return Steered({{'a', 1e6}, {'b', 1e6 - 1e3}}, 2e3, max_new_tokens);
  }
  // aaaaa, then `end` for ever.
  static Request FiveThen(TokenId end, uint32_t max_new_tokens) {
    return Steered({{'a', 1e6}, {end, 1e6 - 4.5e3}}, 1e3, max_new_tokens);
  }

  TestEngine engine_;
};

TEST_F(EndingsTest, Length) {
  const Outcome outcome = engine_.Run(Alternating(7));
  EXPECT_EQ(outcome.text, "abababa");
  EXPECT_EQ(outcome.finish_reason, FinishReason::kLength);
  EXPECT_EQ(outcome.usage.generated_tokens, 7U);
  EXPECT_EQ(outcome.usage.prompt_tokens, 10U);
  EXPECT_EQ(outcome.usage.max_new_tokens, 7U);
  EXPECT_EQ(outcome.usage.cache_budget_tokens, 0U);
  EXPECT_EQ(outcome.usage.evicted_tokens, 0U);
}

TEST_F(EndingsTest, EndOfGenerationIsCountedAndSilent) {
  const Outcome outcome = engine_.Run(FiveThen(testing::kTinyEos, 20));
  EXPECT_EQ(outcome.text, "aaaaa");
  EXPECT_EQ(outcome.tokens.size(), 6U);
  EXPECT_EQ(outcome.tokens.back(), testing::kTinyEos);
  EXPECT_EQ(outcome.usage.generated_tokens, 6U);
  EXPECT_EQ(outcome.finish_reason, FinishReason::kEos);
  EXPECT_TRUE(outcome.stop_string.empty());
}

TEST_F(EndingsTest, EndOfGenerationTextWithSpecialTokens) {
  Request request = FiveThen(testing::kTinyEos, 20);
  request.output.keep_special_tokens = true;
  EXPECT_EQ(engine_.Run(request).text, "aaaaa</s>");
}

TEST_F(EndingsTest, IgnoreEosGoesOn) {
  Request request = FiveThen(testing::kTinyEos, 9);
  request.stopping.ignore_eos = true;
  const Outcome outcome = engine_.Run(request);
  EXPECT_EQ(outcome.tokens.size(), 9U);
  EXPECT_EQ(outcome.finish_reason, FinishReason::kLength);
}

TEST_F(EndingsTest, StopId) {
  Request request = FiveThen('b', 20);
  request.stopping.stop_token_ids = {'z', 'b'};
  Outcome outcome = engine_.Run(request);
  EXPECT_EQ(outcome.text, "aaaaa");
  EXPECT_EQ(outcome.tokens.back(), 'b');
  EXPECT_EQ(outcome.finish_reason, FinishReason::kStop);
  request.stopping.include_stop = true;
  outcome = engine_.Run(request);
  EXPECT_EQ(outcome.text, "aaaaab");
}

TEST_F(EndingsTest, StopString) {
  Request request = Alternating(20);
  request.stopping.stop = {"zz", "bab"};
  Outcome outcome = engine_.Run(request);
  EXPECT_EQ(outcome.text, "a");
  EXPECT_EQ(outcome.stop_string, "bab");
  EXPECT_EQ(outcome.tokens.size(), 4U);
  EXPECT_EQ(outcome.finish_reason, FinishReason::kStop);
  request.stopping.include_stop = true;
  outcome = engine_.Run(request);
  EXPECT_EQ(outcome.text, "abab");
}

TEST_F(EndingsTest, HeldBackTextComesOutAtTheEnd) {
  Request request = Alternating(6);
  request.stopping.stop = {"ababababab"};
  const Outcome outcome = engine_.Run(request);
  EXPECT_EQ(outcome.text, "ababab");
  EXPECT_EQ(outcome.finish_reason, FinishReason::kLength);
}

TEST_F(EndingsTest, BelowMinNewTokensNothingEnds) {
  Request request = FiveThen(testing::kTinyEos, 20);
  request.stopping.min_new_tokens = 9;
  Outcome outcome = engine_.Run(request);
  EXPECT_EQ(outcome.text, "aaaaaaaaa");
  EXPECT_EQ(outcome.tokens.size(), 10U);
  EXPECT_EQ(outcome.finish_reason, FinishReason::kEos);

  request = Alternating(20);
  request.stopping.stop = {"ab"};
  request.stopping.min_new_tokens = 5;
  outcome = engine_.Run(request);
  // "ababa" is free, the next "b" has no "a" before it that counts.
  EXPECT_EQ(outcome.text, "ababab");
  EXPECT_EQ(outcome.stop_string, "ab");
  EXPECT_EQ(outcome.tokens.size(), 8U);
}

TEST_F(EndingsTest, HalfACharacterAtTheEndIsReplaced) {
  // The first byte of a two-byte character, for ever.
  const Outcome outcome = engine_.Run(Steered({{0xC3, 1e6}}, 0.0, 2));
  EXPECT_EQ(outcome.tokens.size(), 2U);
  EXPECT_EQ(outcome.text, "\xEF\xBF\xBD\xEF\xBF\xBD");
}

TEST_F(EndingsTest, ForcedTokensAreTakenAndEndNothing) {
  Request request = Alternating(5);
  request.forced_tokens = {'x', testing::kTinyEos, 'a', 'b', 'y'};
  request.stopping.stop = {"ab"};
  request.stopping.stop_token_ids = {'x'};
  request.output.logprobs = false;
  request.output.top_logprobs = 0;
  const Outcome outcome = engine_.Run(request);
  EXPECT_EQ(outcome.tokens, request.forced_tokens);
  EXPECT_EQ(outcome.text, "xaby");
  EXPECT_EQ(outcome.finish_reason, FinishReason::kLength);
  ASSERT_EQ(outcome.logprobs.size(), 5U);
  EXPECT_EQ(outcome.logprobs[4].id, 'y');
}

TEST_F(EndingsTest, ForcingWhatGreedyChoosesGivesItsLogprobs) {
  Request request = MakeKeyformerRequest(5, 50, 30, 20, 6);
  const Outcome free = engine_.Run(request);
  request.forced_tokens = free.tokens;
  const Outcome forced = engine_.Run(request);
  EXPECT_TRUE(SameAnswer(free, forced));
}

TEST_F(EndingsTest, NothingToGenerate) {
  const Outcome outcome = engine_.Run(MakeKeyformerRequest(1, 40, 0, 16, 4));
  EXPECT_TRUE(outcome.tokens.empty());
  EXPECT_EQ(outcome.firsts, 1);
  EXPECT_EQ(outcome.updates, 1);
  EXPECT_EQ(outcome.finish_reason, FinishReason::kLength);
  EXPECT_EQ(outcome.usage.evicted_tokens, 24U);
  EXPECT_EQ(outcome.usage.max_new_tokens, 0U);
  EXPECT_THAT(outcome.status, testing::IsOk());
  engine_.ExpectNothingHeld();
}

TEST_F(EndingsTest, TheContextCutsTheAnswer) {
  Request request = MakeRequest(1, 505, 100);
  const Outcome outcome = engine_.Run(request);
  EXPECT_EQ(outcome.tokens.size(), 7U);
  EXPECT_EQ(outcome.usage.max_new_tokens, 7U);
  EXPECT_EQ(outcome.finish_reason, FinishReason::kContext);
}

TEST_F(EndingsTest, EchoPutsThePromptFirst) {
  Request request = Alternating(3);
  request.prompt = {'H', 'i', ' '};
  request.output.echo_prompt = true;
  EXPECT_EQ(engine_.Run(request).text, "Hi aba");
  request.prompt_text = "as the client wrote it: ";
  EXPECT_EQ(engine_.Run(request).text, "as the client wrote it: aba");
}

// The logprob of a prompt's last token is that of the same token generated.
TEST_F(EndingsTest, PromptLogprobsAreThoseOfForcedTokens) {
  Request request = MakeRequest(3, 150, 1);
  request.output.prompt_logprobs = true;
  const Outcome outcome = engine_.Run(request);
  ASSERT_EQ(outcome.prompt_logprobs.size(), 149U);
  for (const size_t n : {1U, 77U, 149U}) {
    Request shorter = request;
    shorter.prompt.resize(n);
    shorter.forced_tokens = {request.prompt[n]};
    shorter.output.prompt_logprobs = false;
    const Outcome forced = engine_.Run(shorter);
    ASSERT_EQ(forced.logprobs.size(), 1U);
    const TokenLogprob& prompt = outcome.prompt_logprobs[n - 1];
    EXPECT_EQ(prompt.id, request.prompt[n]);
    EXPECT_EQ(prompt.logprob, forced.logprobs[0].logprob);
    EXPECT_EQ(prompt.rank, forced.logprobs[0].rank);
  }
}

TEST_F(EndingsTest, SeedsAreReturned) {
  Request request = MakeKeyformerRequest(4, 20, 3, 8, 2);
  request.sampling.seed = 77;
  Outcome outcome = engine_.Run(request);
  EXPECT_EQ(outcome.seed, 77U);
  EXPECT_EQ(outcome.noise_seed, 77U);
  request.cache.noise_seed = 5;
  outcome = engine_.Run(request);
  EXPECT_EQ(outcome.noise_seed, 5U);
  request.cache.noise_seed.reset();
  request.sampling.seed.reset();
  request.sampling.temperature = 1.0;
  outcome = engine_.Run(request);
  EXPECT_EQ(outcome.noise_seed, 0U);
  // The drawn seed gives the answer again.
  request.sampling.seed = outcome.seed;
  request.cache.noise_seed = 0;
  EXPECT_TRUE(SameAnswer(engine_.Run(request), outcome));
}

TEST_F(EndingsTest, CacheReportHoldsTheBudget) {
  Request request = MakeKeyformerRequest(9, 60, 20, 24, 6);
  request.cache_report = CacheReportDetail::kFull;
  const Outcome outcome = engine_.Run(request);
  ASSERT_TRUE(outcome.cache_report.has_value());
  for (const auto& [state, seen] :
       {std::pair{&outcome.cache_report->after_prompt, 60},
        std::pair{&outcome.cache_report->at_end, 79}}) {
    ASSERT_EQ(state->size(), 2U);
    for (const auto& layer : *state) {
      ASSERT_EQ(layer.size(), 2U);
      for (const HeldTokens& head : layer) {
        ASSERT_EQ(head.positions.size(), 24U);
        for (size_t i = 1; i < 24; ++i) {
          EXPECT_LT(head.positions[i - 1], head.positions[i]);
        }
        // The recent window is whole.
        EXPECT_EQ(head.positions[18], seen - 6);
        EXPECT_EQ(head.positions[23], seen - 1);
      }
    }
  }
}

}  // namespace
}  // namespace kf::engine
