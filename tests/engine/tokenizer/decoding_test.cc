// UTF-8 steps, incremental decoding and stop strings.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "engine/tokenizer/stop_matcher.h"
#include "engine/tokenizer/utf8.h"
#include "tests/engine/tokenizer/small_vocab.h"
#include "tests/testing/matchers.h"

namespace kf::engine {
namespace {

using ::testing::ElementsAre;

constexpr char kFffd[] = "\xEF\xBF\xBD";

std::string Repeat(std::string_view text, int times) {
  std::string out;
  for (int i = 0; i < times; ++i) out += text;
  return out;
}

TEST(Utf8, StepsEncodeBackForEveryScalarValue) {
  for (char32_t c = 0; c <= 0x10FFFF; ++c) {
    if (c >= 0xD800 && c <= 0xDFFF) continue;
    std::string text;
    AppendUtf8(c, text);
    const Utf8Step step = NextUtf8(text, 0);
    ASSERT_EQ(step.kind, Utf8Kind::kValid);
    ASSERT_EQ(step.length, text.size());
    ASSERT_EQ(step.code_point, c);
    if (text.size() > 1) {
      ASSERT_EQ(NextUtf8(text.substr(0, text.size() - 1), 0).kind,
                Utf8Kind::kIncomplete);
    }
  }
}

// Byte tokens of a byte-level vocabulary: ids are the bytes.
class BytesTest : public ::testing::Test {
 protected:
  static const Tokenizer& Bytes() {
    static const auto tokenizer = *SmallVocab::Bpe().Load();
    return *tokenizer;
  }
  static std::string Decoded(std::string_view bytes) {
    std::vector<TokenId> ids;
    for (const char c : bytes) ids.push_back(static_cast<uint8_t>(c));
    return Bytes().Decode(ids, false);
  }
};

// Expected values: bytes.decode("utf-8", "replace") of Python 3.11.
TEST_F(BytesTest, InvalidBytesBecomeReplacementCharactersAsInPython) {
  EXPECT_EQ(Decoded("a\xFF"
                    "b"),
            std::string("a") + kFffd + "b");
  EXPECT_EQ(Decoded("\xC0\xAF"), Repeat(kFffd, 2));
  EXPECT_EQ(Decoded("\xE2\x82"), kFffd);
  EXPECT_EQ(Decoded("\xE2\x82"
                    "A"),
            std::string(kFffd) + "A");
  EXPECT_EQ(Decoded("\xF0\x9F\x98"), kFffd);
  EXPECT_EQ(Decoded("\xED\xA0\x80"), Repeat(kFffd, 3));
  EXPECT_EQ(Decoded("\xF4\x90\x80\x80"), Repeat(kFffd, 4));
  EXPECT_EQ(Decoded("\xE2\x82\xE2\x82\xAC"), std::string(kFffd) + "€");
}

TEST_F(BytesTest, NeverHalfACharacter) {
  IncrementalDecoder decoder(Bytes(), false, false);
  std::vector<std::string> pieces;
  for (const char c : std::string("é😀a")) {
    pieces.push_back(decoder.Push(static_cast<uint8_t>(c)));
  }
  EXPECT_THAT(pieces, ElementsAre("", "é", "", "", "", "😀", "a"));
  EXPECT_EQ(decoder.Finish(), "");
  EXPECT_EQ(decoder.Push(0xF0), "");
  EXPECT_EQ(decoder.Push(0x9F), "");
  EXPECT_EQ(decoder.Push('x'), std::string(kFffd) + "x");
  EXPECT_EQ(decoder.Push(0xC3), "");
  EXPECT_EQ(decoder.Finish(), kFffd);
  EXPECT_EQ(decoder.Finish(), "");
}

TEST(IncrementalDecoder, ContinuationsKeepTheirLeadingSpace) {
  const SmallVocab vocab = SmallVocab::Spm({"\u2581", "\u2581hi"});
  const auto tokenizer = vocab.Load();
  ASSERT_THAT(tokenizer, kf::testing::IsOk());
  const auto push = [](IncrementalDecoder decoder,
                       const std::vector<TokenId>& ids) {
    std::string out;
    for (const TokenId id : ids) out += decoder.Push(id);
    return out;
  };
  const IncrementalDecoder answer(**tokenizer, false, /*at_text_start=*/false);
  EXPECT_EQ(push(answer, {260, 1, 260}), " hi hi");
  const IncrementalDecoder text(**tokenizer, false, /*at_text_start=*/true);
  EXPECT_EQ(push(text, {1, 260, 260}), "hi hi");
}

struct Stopped {
  std::string text;
  std::string matched;
  bool operator==(const Stopped&) const = default;
};

// Pushes `text` in pieces of `step` bytes.
Stopped Feed(std::vector<std::string> stops,
             bool include,
             const std::string& text,
             size_t step) {
  StopMatcher matcher(std::move(stops), include);
  Stopped out;
  for (size_t i = 0; i < text.size(); i += step) {
    const StopMatcher::Result result = matcher.Push(text.substr(i, step));
    out.text += result.text;
    if (result.stopped) {
      out.matched = result.matched;
      return out;
    }
  }
  out.text += matcher.Finish();
  return out;
}

TEST(StopMatcher, SameResultHoweverTheTextIsCut) {
  struct Case {
    std::vector<std::string> stops;
    std::string text;
    Stopped want;
  };
  const Case cases[] = {
      {{}, "anything", {"anything", ""}},
      {{"END"}, "an ENEND tail", {"an EN", "END"}},
      {{"END"}, "an EN", {"an EN", ""}},
      {{"\n\n", "bb"}, "abb\n\n", {"a", "bb"}},
      // The one that ends first wins though another began before it.
      {{"abcd", "bc"}, "abcd", {"a", "bc"}},
      // Of those that end together the longest.
      {{"c", "abc", "bc"}, "xabc", {"x", "abc"}},
      {{"aab"}, "aaaab", {"aa", "aab"}},
      {{"abab!"}, "ababab!", {"ab", "abab!"}},
      {{"é"}, "caf\xC3\xA9s", {"caf", "é"}},
  };
  for (const Case& c : cases) {
    for (size_t step = 1; step <= c.text.size(); ++step) {
      SCOPED_TRACE(c.text);
      EXPECT_EQ(Feed(c.stops, false, c.text, step), c.want);
      const Stopped with = {c.want.text + c.want.matched, c.want.matched};
      EXPECT_EQ(Feed(c.stops, true, c.text, step), with);
    }
  }
}

TEST(StopMatcher, HoldsBackOnlyWhatMayBecomeAStop) {
  StopMatcher matcher({"</s>"}, false);
  EXPECT_EQ(matcher.Push("a<").text, "a");
  EXPECT_EQ(matcher.Push("/").text, "");
  EXPECT_EQ(matcher.Push("b").text, "</b");
  EXPECT_EQ(matcher.Push("<").text, "");
  EXPECT_EQ(matcher.Finish(), "<");
  EXPECT_EQ(matcher.Finish(), "");
}

TEST(StopMatcher, CopiesShareTheirStringsAndNoText) {
  StopMatcher first({"</s>", "ab"}, false);
  StopMatcher second = first;
  EXPECT_TRUE(second.SharesStringsWith(first));
  EXPECT_EQ(first.Push("x</s").text, "x");
  EXPECT_EQ(second.Push(">a").text, ">");
  EXPECT_EQ(first.Push("b").text, "</sb");
  EXPECT_EQ(second.Push("b").matched, "ab");
}

}  // namespace
}  // namespace kf::engine
