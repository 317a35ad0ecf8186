#include "server/pending_updates.h"

#include <string>
#include <vector>

#include "tests/testing/matchers.h"

namespace kf::server {
namespace {

engine::Update Delta(uint32_t index, const std::string& text) {
  engine::Update update;
  update.index = index;
  update.text = text;
  update.usage.prompt_tokens = 9;  // of no meaning in the middle
  return update;
}

engine::Update First(uint32_t index, const std::string& text) {
  engine::Update update = Delta(index, text);
  update.first = true;
  update.seed = 5;
  update.prompt_logprobs.resize(8);
  return update;
}

engine::Update Last(uint32_t index, const std::string& text) {
  engine::Update update = Delta(index, text);
  update.finish_reason = engine::FinishReason::kLength;
  update.usage.generated_tokens = 7;
  return update;
}

std::vector<engine::Update> TakeAll(PendingUpdates& pending) {
  std::vector<engine::Update> all;
  while (!pending.empty()) all.push_back(pending.Take());
  return all;
}

TEST(PendingUpdates, JoinsDeltasOfASequence) {
  PendingUpdates pending(2);
  pending.Add(First(0, "a"));
  pending.Add(Delta(1, "x"));
  pending.Add(Delta(0, "b"));
  pending.Add(Delta(1, "y"));
  const auto all = TakeAll(pending);
  ASSERT_EQ(all.size(), 2U);
  EXPECT_EQ(all[0].text, "ab");
  EXPECT_TRUE(all[0].first);
  EXPECT_EQ(all[0].usage.prompt_tokens, 9U);
  EXPECT_EQ(all[1].text, "xy");
  EXPECT_EQ(all[1].usage.prompt_tokens, 0U);
  EXPECT_FALSE(pending.complete());
}

TEST(PendingUpdates, TheLastOfTheRequestIsTakenLastWithTheUsage) {
  PendingUpdates pending(3);
  pending.Add(First(0, "a"));
  EXPECT_TRUE(pending.Take().first);
  // 1 is older than 2, but ends after it.
  pending.Add(Delta(1, "1"));
  pending.Add(Delta(2, "2"));
  pending.Add(Last(0, ""));
  pending.Add(Last(2, "!"));
  EXPECT_FALSE(pending.complete());
  pending.Add(Last(1, "!"));
  EXPECT_TRUE(pending.complete());
  const auto all = TakeAll(pending);
  ASSERT_EQ(all.size(), 3U);
  EXPECT_EQ(all[0].index, 0U);
  EXPECT_EQ(all[0].usage.generated_tokens, 0U);
  EXPECT_EQ(all[1].text, "2!");
  EXPECT_EQ(all[1].usage.generated_tokens, 0U);
  EXPECT_EQ(all[2].text, "1!");
  EXPECT_EQ(all[2].usage.generated_tokens, 7U);
}

// Nobody has read a byte, and the sequence that brought the prompt's part ends
// last: the part goes with what is sent first all the same.
TEST(PendingUpdates, ThePromptsPartIsTakenFirst) {
  PendingUpdates pending(2);
  pending.Add(First(0, "a"));
  pending.Add(Delta(1, "x"));
  pending.Add(Last(1, "y"));
  pending.Add(Last(0, "b"));
  const auto all = TakeAll(pending);
  ASSERT_EQ(all.size(), 2U);
  EXPECT_EQ(all[0].index, 1U);
  EXPECT_TRUE(all[0].first);
  EXPECT_EQ(all[0].seed, 5U);
  EXPECT_EQ(all[0].prompt_logprobs.size(), 8U);
  EXPECT_EQ(all[0].usage.prompt_tokens, 9U);
  EXPECT_EQ(all[0].text, "xy");
  EXPECT_EQ(all[1].text, "ab");
  EXPECT_FALSE(all[1].first);
  EXPECT_TRUE(all[1].prompt_logprobs.empty());
  EXPECT_EQ(all[1].usage.generated_tokens, 7U);
}

// A beam search may end with fewer beams than it was asked for.
TEST(PendingUpdates, FewerThanExpectedEndWithTheUsageAllTheSame) {
  PendingUpdates pending(3);
  pending.Add(First(0, "a"));
  pending.Add(Last(0, ""));
  pending.Add(Last(1, "b"));
  pending.Close();
  EXPECT_TRUE(pending.complete());
  EXPECT_TRUE(pending.Take().first);
  EXPECT_EQ(pending.Take().usage.generated_tokens, 7U);
  // All of them taken before that was known.
  pending = PendingUpdates(2);
  pending.Add(Last(0, "b"));
  EXPECT_EQ(pending.Take().usage.generated_tokens, 0U);
  pending.Close();
  const engine::Update rest = pending.Take();
  EXPECT_EQ(rest.usage.generated_tokens, 7U);
  EXPECT_TRUE(pending.empty());
}

TEST(PendingUpdates, OneUpdateMayBeAll) {
  PendingUpdates pending;
  engine::Update update = First(0, "a");
  update.finish_reason = engine::FinishReason::kEos;
  pending.Add(std::move(update));
  EXPECT_TRUE(pending.complete());
  const engine::Update all = pending.Take();
  EXPECT_TRUE(all.first);
  EXPECT_EQ(all.usage.prompt_tokens, 9U);
}

}  // namespace
}  // namespace kf::server
