#include "server/convert_response.h"

#include <string>
#include <vector>

#include "server/convert_report.h"
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
    return ToChunk(update, context_);
  }
  std::unique_ptr<testing::TinyContext> tiny_ = testing::MakeTinyContext(false);
  const std::string id_ = "id";
  ResponseContext context_{.request_id = id_, .tokenizer = *tiny_->tokenizer};
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

  const v1::GenerateResponse response = ToResponse({joined}, context_);
  ASSERT_EQ(response.sequences_size(), 1);
  EXPECT_EQ(response.sequences(0).text(), "ab");
  EXPECT_EQ(response.sequences(0).finish_reason(), v1::FINISH_REASON_STOP);
  EXPECT_EQ(response.usage().evicted_tokens(), 1U);
  EXPECT_EQ(response.seed(), 11U);
  EXPECT_EQ(response.prompt_logprobs_size(), 1);
}

TEST_F(Convert, SequencesAreAnsweredInTheOrderOfTheirIndex) {
  engine::Update one = Last();
  one.index = 1;
  one.score = -2.5;
  one.usage = {};
  engine::Update zero = First();
  MergeUpdate(Last(), &zero);
  zero.usage.generated_tokens = 6;
  const v1::GenerateChunk chunk = Chunk(one);
  EXPECT_EQ(chunk.index(), 1U);
  EXPECT_EQ(chunk.score(), -2.5);
  EXPECT_FALSE(chunk.has_usage());
  const v1::GenerateResponse response = ToResponse({one, zero}, context_);
  ASSERT_EQ(response.sequences_size(), 2);
  EXPECT_EQ(response.sequences(0).index(), 0U);
  EXPECT_EQ(response.sequences(0).text(), "ab");
  EXPECT_EQ(response.sequences(1).index(), 1U);
  EXPECT_EQ(response.sequences(1).text(), "b");
  EXPECT_EQ(response.sequences(1).score(), -2.5);
  EXPECT_EQ(response.usage().generated_tokens(), 6U);
  EXPECT_EQ(response.seed(), 11U);
}

// Two layers of two heads; prompt of 4, one generated token fed.
engine::CacheReport Report() {
  engine::CacheReport report;
  report.budget_tokens = 3;
  report.recent_tokens = 1;
  report.kept_after_prompt = {4, {3, 3, 2, 4}};
  report.kept_at_end = {4, {4, 1, 0, 3}};
  report.after_prompt = {{{{0, 1, 3}, {.5F, .25F, .125F}}, {{0, 2, 3}, {}}},
                         {{{0, 1, 3}, {}}, {{1, 2, 3}, {}}}};
  report.at_end = {{{{0, 3, 4}, {2.F, 3.F, 4.F}}, {{0, 3, 4}, {}}},
                   {{{0, 3, 4}, {}}, {{0, 1, 4}, {}}}};
  return report;
}

TEST_F(Convert, ReportsAreSharesOfTheHeadsThatHoldAToken) {
  engine::Update update = Last();
  update.cache_report = Report();
  EXPECT_FALSE(Chunk(update).has_cache_report());  // nobody asked
  context_.report = engine::CacheReportDetail::kSummary;
  const v1::CacheReport report = Chunk(update).cache_report();
  EXPECT_EQ(report.budget_tokens(), 3U);
  EXPECT_EQ(report.recent_tokens(), 1U);
  const auto retention = [](const v1::CacheState& state) {
    return std::vector<double>(state.retention().begin(),
                               state.retention().end());
  };
  EXPECT_EQ(retention(report.after_prompt()),
            (std::vector<double>{0.75, 0.75, 0.5, 1.0}));
  EXPECT_EQ(retention(report.at_end()),
            (std::vector<double>{1.0, 0.25, 0.0, 0.75}));
  EXPECT_EQ(report.at_end().layers_size(), 0);
}

TEST_F(Convert, FullReportsHavePositionsAndScores) {
  engine::Update update = Last();
  update.cache_report = Report();
  context_.report = engine::CacheReportDetail::kFull;
  const v1::CacheReport report =
      ToResponse({update}, context_).sequences(0).cache_report();
  ASSERT_EQ(report.at_end().layers_size(), 2);
  ASSERT_EQ(report.at_end().layers(0).heads_size(), 2);
  const v1::HeadState& head = report.at_end().layers(0).heads(0);
  EXPECT_EQ(
      std::vector<uint32_t>(head.positions().begin(), head.positions().end()),
      (std::vector<uint32_t>{0, 3, 4}));
  EXPECT_EQ(head.scores(2), 4.0);
  EXPECT_EQ(report.at_end().retention_size(), 4);
  EXPECT_EQ(report.after_prompt().layers(1).heads(1).positions(0), 1U);
}

TEST(ReportSize, IsBoundedForFullDetailAlone) {
  engine::Request request;
  request.prompt.assign(100, 1);
  request.stopping.max_new_tokens = 20;
  request.cache.policy = engine::CachePolicy::kFull;
  request.cache_report = engine::CacheReportDetail::kFull;
  ReportLimits limits{.kv_heads = 2, .request = {}};
  limits.request.layers = 3;
  limits.request.vocabulary = 10;
  limits.request.context_tokens = 512;
  // Two states: 120 tokens and a header in 3 layers of 2 heads, the state's own
  // header, and the retention of 100 prompt tokens.
  limits.max_bytes = 2U * (16U * (3U * 2U * 121U + 1U) + 8U * 100U);
  EXPECT_THAT(CheckReportSize(request, limits), testing::IsOk());
  request.samples = 2;
  EXPECT_THAT(
      CheckReportSize(request, limits),
      testing::StatusIs(absl::StatusCode::kInvalidArgument,
                        "output.cache_report: FULL may take 49728 bytes"));
  request.cache_report = engine::CacheReportDetail::kSummary;
  EXPECT_THAT(CheckReportSize(request, limits), testing::IsOk());
  // A budget makes it small again.
  request.cache_report = engine::CacheReportDetail::kFull;
  request.cache.policy = engine::CachePolicy::kKeyformer;
  request.cache.tokens = 50;
  EXPECT_THAT(CheckReportSize(request, limits), testing::IsOk());
}

// What is allowed is never less than what a message takes: long prompts of
// which little is held, and tokens with the longest positions.
TEST(ReportSize, CoversTheMessage) {
  for (const uint32_t budget : {1U, 2U, 50U}) {
    for (const int32_t n : {50, 500}) {
      engine::CacheReport report;
      report.budget_tokens = report.recent_tokens = budget;
      HeldTokens head;
      for (uint32_t i = 0; i < budget; ++i) {
        head.positions.push_back((1 << 28) - 100 + static_cast<int32_t>(i));
        head.scores.push_back(1e-3F);
      }
      report.after_prompt.assign(3, {head, head});
      report.at_end = report.after_prompt;
      report.kept_at_end = {6, std::vector<uint32_t>(static_cast<size_t>(n))};
      report.kept_after_prompt = report.kept_at_end;
      const v1::CacheReport wire =
          ToCacheReport(report, engine::CacheReportDetail::kFull);
      engine::Request request;
      request.prompt.assign(static_cast<size_t>(n), 1);
      request.stopping.max_new_tokens = 20;
      request.cache.tokens = budget;
      request.cache_report = engine::CacheReportDetail::kFull;
      ReportLimits limits{.kv_heads = 2, .request = {}};
      limits.request.layers = 3;
      limits.request.vocabulary = 10;
      limits.request.context_tokens = 1024;
      limits.max_bytes = wire.ByteSizeLong() - 1;
      EXPECT_THAT(CheckReportSize(request, limits),
                  testing::StatusIs(absl::StatusCode::kInvalidArgument,
                                    "output.cache_report"))
          << n << " tokens, budget " << budget;
    }
  }
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
