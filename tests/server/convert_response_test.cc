#include "server/convert_response.h"

#include <string>
#include <vector>

#include "tests/server/tiny_context.h"
#include "tests/testing/matchers.h"

namespace kf::server {
namespace {

namespace v1 = ::keyformer::v1;

engine::Update First() {
  engine::Update update;
  update.first = true;
  update.text = "a";
  update.token_ids = {97};
  update.logprobs = {{97, -0.5, 1, {{97, -0.5, 1, {}}, {98, -1.5, 2, {}}}}};
  update.prompt_logprobs = {{10, -3.0, 4, {}}};
  update.usage.prompt_tokens = 2;
  update.seed = 11;
  update.noise_seed = 12;
  return update;
}

engine::Update Last() {
  engine::Update update;
  update.text = "b";
  update.token_ids = {98, 99};
  update.finish_reason = engine::FinishReason::kStop;
  update.stop_string = "c";
  update.usage.prompt_tokens = 2;
  update.usage.generated_tokens = 3;
  update.usage.evicted_tokens = 1;
  return update;
}

class Convert : public ::testing::Test {
 protected:
  v1::GenerateChunk Chunk(const engine::Update& update) {
    return ToChunk(update, "id", *tiny_->tokenizer);
  }
  std::unique_ptr<testing::TinyContext> tiny_ = testing::MakeTinyContext(false);
};

TEST_F(Convert, FirstChunkCarriesThePromptsPart) {
  const v1::GenerateChunk chunk = Chunk(First());
  EXPECT_EQ(chunk.request_id(), "id");
  EXPECT_EQ(chunk.text(), "a");
  EXPECT_EQ(chunk.seed(), 11U);
  EXPECT_EQ(chunk.noise_seed(), 12U);
  EXPECT_EQ(chunk.usage().prompt_tokens(), 2U);
  EXPECT_EQ(chunk.finish_reason(), v1::FINISH_REASON_NOT_FINISHED);
  ASSERT_EQ(chunk.logprobs_size(), 1);
  EXPECT_EQ(chunk.logprobs(0).text(), "a");
  ASSERT_EQ(chunk.logprobs(0).top_size(), 2);
  EXPECT_EQ(chunk.logprobs(0).top(1).token_id(), 98U);
  EXPECT_EQ(chunk.logprobs(0).top(1).rank(), 2U);
  ASSERT_EQ(chunk.prompt_logprobs_size(), 1);
  EXPECT_EQ(chunk.prompt_logprobs(0).logprob(), -3.0);
}

TEST_F(Convert, MiddleChunkCarriesTheDeltaAlone) {
  engine::Update update;
  update.text = "x";
  update.token_ids = {120};
  update.usage.prompt_tokens = 2;
  const v1::GenerateChunk chunk = Chunk(update);
  EXPECT_FALSE(chunk.has_usage());
  EXPECT_EQ(chunk.seed(), 0U);
  EXPECT_EQ(chunk.token_ids_size(), 1);
}

TEST_F(Convert, JoinedUpdatesAreOneChunkAndOneResponse) {
  engine::Update joined;
  MergeUpdate(First(), &joined);
  MergeUpdate(Last(), &joined);
  const v1::GenerateChunk chunk = Chunk(joined);
  EXPECT_EQ(chunk.text(), "ab");
  EXPECT_EQ(chunk.token_ids_size(), 3);
  EXPECT_EQ(chunk.finish_reason(), v1::FINISH_REASON_STOP);
  EXPECT_EQ(chunk.stop_string(), "c");
  EXPECT_EQ(chunk.usage().generated_tokens(), 3U);
  EXPECT_EQ(chunk.seed(), 11U);

  const v1::GenerateResponse response =
      ToResponse(joined, "id", *tiny_->tokenizer);
  ASSERT_EQ(response.sequences_size(), 1);
  EXPECT_EQ(response.sequences(0).text(), "ab");
  EXPECT_EQ(response.sequences(0).finish_reason(), v1::FINISH_REASON_STOP);
  EXPECT_EQ(response.usage().evicted_tokens(), 1U);
  EXPECT_EQ(response.seed(), 11U);
  EXPECT_EQ(response.prompt_logprobs_size(), 1);
}

TEST_F(Convert, EveryFinishReasonHasItsName) {
  using engine::FinishReason;
  const std::vector<std::pair<FinishReason, v1::FinishReason>> pairs = {
      {FinishReason::kEos, v1::FINISH_REASON_EOS},
      {FinishReason::kStop, v1::FINISH_REASON_STOP},
      {FinishReason::kLength, v1::FINISH_REASON_LENGTH},
      {FinishReason::kContext, v1::FINISH_REASON_CONTEXT},
      {FinishReason::kTimeLimit, v1::FINISH_REASON_TIME_LIMIT},
      {FinishReason::kCancelled, v1::FINISH_REASON_CANCELLED},
      {FinishReason::kError, v1::FINISH_REASON_ERROR}};
  for (const auto& [engine_reason, wire_reason] : pairs) {
    engine::Update update;
    update.finish_reason = engine_reason;
    EXPECT_EQ(Chunk(update).finish_reason(), wire_reason);
  }
}

}  // namespace
}  // namespace kf::server
