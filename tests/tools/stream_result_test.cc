#include "tools/keyformer/stream_result.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

namespace kf::tools {
namespace {

namespace pb = ::keyformer::v1;
using std::chrono::milliseconds;
using ::testing::HasSubstr;

class StreamResultTest : public ::testing::Test {
 protected:
  // `tokens` more of sequence `index`, at `ms` after sending.
  void Add(uint32_t index, int tokens, int ms, bool last = false) {
    pb::GenerateChunk chunk;
    chunk.set_index(index);
    chunk.set_text(
        std::string(static_cast<size_t>(tokens), index == 0 ? 'a' : 'b'));
    for (int i = 0; i < tokens; ++i) chunk.add_token_ids(7);
    if (last) chunk.set_finish_reason(pb::FINISH_REASON_LENGTH);
    result_.Add(chunk, sent_ + milliseconds(ms));
  }
  const StreamResult::Clock::time_point sent_{};
  StreamResult result_{sent_};
};

TEST_F(StreamResultTest, OneSequenceIsTimedFromItsFirstChunk) {
  Add(0, 2, 100);
  Add(0, 10, 1100, true);
  EXPECT_EQ(result_.FirstTokenMs(), 100.0);
  EXPECT_EQ(result_.TokensPerSecond(), 10.0);
  EXPECT_EQ(result_.text(), std::string(12, 'a'));
  EXPECT_THAT(result_.Summary(absl::OkStatus()), HasSubstr("(12 tokens in"));
  EXPECT_FALSE(result_.ToJson().contains("sequences"));
  EXPECT_EQ(result_.ToJson()["token_ids"].size(), 12U);
}

// The first token of each comes from the prompt's step, and is not decoding.
TEST_F(StreamResultTest, SeveralAreTimedTogether) {
  Add(0, 1, 100);
  Add(1, 1, 100);
  Add(0, 5, 600, true);
  Add(1, 5, 1100, true);
  EXPECT_EQ(result_.TokensPerSecond(), 10.0);
  const std::string summary = result_.Summary(absl::OkStatus());
  EXPECT_THAT(summary, HasSubstr("(12 tokens in"));
  EXPECT_THAT(summary, HasSubstr("sequences       2"));
  EXPECT_THAT(summary, HasSubstr("finish          LENGTH, LENGTH\n"));
  const nlohmann::json json = result_.ToJson();
  EXPECT_EQ(json["text"], "aaaaaa");
  ASSERT_EQ(json["sequences"].size(), 2U);
  EXPECT_EQ(json["sequences"][1]["text"], "bbbbbb");
}

TEST_F(StreamResultTest, BeamsGoByTheServersClock) {
  pb::GenerateChunk last;
  for (uint32_t index = 0; index < 2; ++index) {
    last.set_index(index);
    for (int i = 0; i < 11; ++i) last.add_token_ids(7);
    last.set_score(-0.5 - index);
    last.set_finish_reason(pb::FINISH_REASON_EOS);
    if (index == 1) last.mutable_usage()->set_decode_ms(2000.0);
    result_.Add(last, sent_ + milliseconds(3000));
    last.Clear();
  }
  EXPECT_EQ(result_.TokensPerSecond(), 10.0);
  EXPECT_EQ(result_.ToJson()["sequences"][1]["score"], -1.5);
}

TEST_F(StreamResultTest, NothingIsNoSpeed) {
  EXPECT_EQ(result_.TokensPerSecond(), 0.0);
  EXPECT_EQ(result_.FirstTokenMs(), 0.0);
  EXPECT_EQ(result_.text(), "");
  Add(0, 3, 10, true);
  EXPECT_EQ(result_.TokensPerSecond(), 0.0);
}

TEST_F(StreamResultTest, AReportIsInTheJson) {
  pb::GenerateChunk chunk;
  pb::CacheState& state = *chunk.mutable_cache_report()->mutable_at_end();
  state.add_retention(0.5);
  pb::HeadState& head = *state.add_layers()->add_heads();
  head.add_positions(3);
  head.add_scores(0.25);
  result_.Add(chunk, sent_);
  const nlohmann::json report = result_.ToJson()["cache_report"]["at_end"];
  EXPECT_EQ(report["retention"][0], 0.5);
  EXPECT_EQ(report["layers"][0]["heads"][0]["positions"][0], 3);
}

TEST_F(StreamResultTest, OneFailedSequenceFailsTheAnswer) {
  Add(0, 1, 1, true);
  EXPECT_FALSE(result_.failed());
  pb::GenerateChunk chunk;
  chunk.set_index(1);
  chunk.set_finish_reason(pb::FINISH_REASON_ERROR);
  result_.Add(chunk, sent_);
  EXPECT_TRUE(result_.failed());
}

}  // namespace
}  // namespace kf::tools
