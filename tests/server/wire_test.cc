#include "server/wire.h"

#include <string>

#include "google/protobuf/unknown_field_set.h"
#include "keyformer/v1/generation.pb.h"
#include "server/utf8.h"
#include "tests/testing/matchers.h"

namespace kf::server {
namespace {

namespace v1 = ::keyformer::v1;
using testing::IsOk;
using testing::StatusIs;
constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;

// Length-delimited field `number` (below 16) with `payload`.
std::string Field(int number, const std::string& payload) {
  std::string bytes;
  bytes += static_cast<char>(number << 3 | 2);
  size_t length = payload.size();
  for (; length >= 128; length >>= 7) {
    bytes += static_cast<char>(length % 128 | 128);
  }
  bytes += static_cast<char>(length);
  return bytes + payload;
}

std::string Times(int count, const std::string& bytes) {
  std::string all;
  for (int i = 0; i < count; ++i) all += bytes;
  return all;
}

TEST(ParseMessage, ReadsWhatProtobufWrites) {
  v1::GenerateRequest request;
  request.set_text("h\xC3\xA9llo");
  request.mutable_sampling()->set_temperature(0.5);
  (*request.mutable_sampling()->mutable_logit_bias())[7] = -1.5;
  request.mutable_stopping()->add_stop("\n");
  request.mutable_cache()->set_tokens(9);
  request.mutable_forced_tokens()->add_ids(300);
  v1::GenerateRequest parsed;
  ASSERT_THAT(ParseMessage(request.SerializeAsString(), &parsed), IsOk());
  EXPECT_EQ(parsed.SerializeAsString(), request.SerializeAsString());
}

TEST(ParseMessage, NamesTheFieldThatIsNotUtf8) {
  v1::GenerateRequest request;
  EXPECT_THAT(ParseMessage(Field(3, "abc\xFF"), &request),
              StatusIs(kInvalid, "text: not UTF-8 at byte 3"));
  const std::string good = Field(1, Field(1, "user") + Field(2, "hi"));
  const std::string bad = Field(1, Field(1, "user") + Field(2, "1234567\xC3"));
  EXPECT_THAT(
      ParseMessage(Field(5, good + bad), &request),
      StatusIs(kInvalid, "chat.messages[1].content: not UTF-8 at byte 7"));
  EXPECT_THAT(ParseMessage(Field(7, Field(3, "\x80")), &request),
              StatusIs(kInvalid, "stopping.stop[0]: not UTF-8 at byte 0"));
}

TEST(ParseMessage, EveryTruncationIsAnError) {
  v1::GenerateRequest request;
  request.mutable_chat()->add_messages()->set_role("user");
  request.mutable_chat()->mutable_messages(0)->set_content("hello");
  const std::string whole = request.SerializeAsString();
  for (size_t size = 1; size < whole.size(); ++size) {
    v1::GenerateRequest parsed;
    EXPECT_THAT(ParseMessage(whole.substr(0, size), &parsed),
                StatusIs(kInvalid, "the bytes are no"))
        << size;
  }
}

TEST(ParseMessage, GarbageNamesTheMessage) {
  v1::GenerateRequest request;
  EXPECT_THAT(ParseMessage("\x07garbage", &request),
              StatusIs(kInvalid, "keyformer.v1.GenerateRequest"));
  // A string field sent as a number.
  EXPECT_THAT(ParseMessage(std::string("\x18\x01", 2), &request),
              StatusIs(kInvalid, "keyformer.v1.GenerateRequest"));
  // A length beyond the end.
  EXPECT_THAT(ParseMessage("\x1A\xFF\xFF\xFF\xFF\x07", &request),
              StatusIs(kInvalid, "text: the bytes are no"));
}

TEST(ParseMessage, SkipsUnknownFieldsAndBoundsTheirNesting) {
  v1::GenerateRequest request;
  EXPECT_THAT(ParseMessage(Field(15, "new"), &request), IsOk());
  // 10,000 groups, each inside the one before.
  EXPECT_THAT(ParseMessage(std::string(10000, '\x7B'), &request),
              StatusIs(kInvalid, "the bytes are no"));
}

TEST(ParseMessage, BoundsEntriesThatCostMoreThanTheyWeigh) {
  std::string chat;
  for (int i = 0; i <= kMaxRepeatedEntries; ++i) chat += Field(1, "");
  v1::Chat message;
  EXPECT_THAT(ParseMessage(chat, &message),
              StatusIs(kInvalid, "messages: more than 65536 entries"));
  EXPECT_THAT(ParseMessage(chat.substr(2), &message), IsOk());
}

TEST(ParseMessage, CountsEntriesOverEveryOccurrenceOfTheirMessage) {
  // Protobuf joins the occurrences of a singular message.
  const std::string half =
      Field(5, Times(kMaxRepeatedEntries / 2 + 1, Field(1, "")));
  v1::GenerateRequest request;
  EXPECT_THAT(ParseMessage(half, &request), IsOk());
  EXPECT_THAT(ParseMessage(half + half, &request),
              StatusIs(kInvalid, "chat.messages: more than 65536 entries"));
}

TEST(ParseMessage, BoundsFieldsThatItDoesNotKnow) {
  v1::GenerateRequest request;
  for (const std::string& unknown :
       {Field(15, ""), std::string("\x78\x00", 2),
        // Numbers as bytes are unknown too, wherever they are.
        Field(10, ""), Field(6, Field(9, "")), Field(6, Field(1, ""))}) {
    EXPECT_THAT(ParseMessage(unknown, &request), IsOk());
    EXPECT_THAT(ParseMessage(Times(kMaxUnknownFields, unknown), &request),
                IsOk());
    EXPECT_THAT(ParseMessage(Times(kMaxUnknownFields + 1, unknown), &request),
                StatusIs(kInvalid, "request: more than 1024 unknown fields"));
  }
}

TEST(Utf8, KnowsWellFormedText) {
  const auto valid = [](const std::string& text) {
    return ValidUtf8Prefix(text);
  };
  EXPECT_EQ(valid("a\xC3\xA9\xE2\x82\xAC\xF0\x9F\x98\x80"), 10U);
  EXPECT_EQ(valid(std::string("a\0b", 3)), 3U);
  EXPECT_EQ(valid("\xC0\x80"), 0U);          // overlong
  EXPECT_EQ(valid("\xE0\x9F\xBF"), 0U);      // overlong
  EXPECT_EQ(valid("x\xED\xA0\x80"), 1U);     // surrogate
  EXPECT_EQ(valid("\xF4\x90\x80\x80"), 0U);  // above U+10FFFF
  EXPECT_EQ(valid("\xF0\x9F\x98"), 0U);      // cut off
  EXPECT_EQ(valid("\xE2\x82x"), 0U);
}

TEST(Utf8, CutsBetweenCharacters) {
  EXPECT_EQ(CutUtf8("abc", 5), "abc");
  EXPECT_EQ(CutUtf8("a\xE2\x82\xAC", 4), "a\xE2\x82\xAC");
  EXPECT_EQ(CutUtf8("a\xE2\x82\xAC", 3), "a");
  EXPECT_EQ(CutUtf8("a\xE2\x82\xAC", 2), "a");
  EXPECT_EQ(CutUtf8("a\xE2\x82\xAC", 1), "a");
}

}  // namespace
}  // namespace kf::server
