#include "tools/client_lib/text_input.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdio>
#include <fstream>
#include <string>

namespace kf::tools {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

struct Utf8Case {
  const char* name;
  std::string text;
  std::optional<size_t> bad;
};

class Utf8Test : public ::testing::TestWithParam<Utf8Case> {};

TEST_P(Utf8Test, FindsTheFirstBadByte) {
  EXPECT_EQ(FindInvalidUtf8(GetParam().text), GetParam().bad);
}

INSTANTIATE_TEST_SUITE_P(
    Cases,
    Utf8Test,
    ::testing::Values(Utf8Case{"Empty", "", std::nullopt},
                      Utf8Case{"Ascii", "plain", std::nullopt},
                      Utf8Case{"AllLengths", "a\u00e9\u20ac\U0001F600",
                               std::nullopt},
                      Utf8Case{"Last", "\xF4\x8F\xBF\xBF", std::nullopt},
                      Utf8Case{"PastLast", "\xF4\x90\x80\x80", 0},
                      Utf8Case{"Overlong2", "ab\xC0\x80", 2},
                      Utf8Case{"Overlong3", "\xE0\x9F\xBF", 0},
                      Utf8Case{"Overlong4", "\xF0\x8F\xBF\xBF", 0},
                      Utf8Case{"Surrogate", "x\xED\xA0\x80", 1},
                      Utf8Case{"LoneContinuation", "\x80", 0},
                      Utf8Case{"CutShort", "abc\xE2\x82", 3},
                      Utf8Case{"Latin1", "caf\xE9!", 3}),
    [](const auto& param_info) { return param_info.param.name; });

TEST(CheckUtf8, NamesFieldAndByte) {
  const absl::Status status = CheckUtf8("caf\xE9", "prompt");
  EXPECT_TRUE(absl::IsInvalidArgument(status));
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("prompt: not UTF-8 at byte 3"));
}

TEST(ParseTokenIds, TakesCommasSpacesAndBrackets) {
  EXPECT_THAT(*ParseTokenIds("1,2, 3"), ElementsAre(1, 2, 3));
  EXPECT_THAT(*ParseTokenIds("[4 5\n4294967295]\n"),
              ElementsAre(4, 5, 4294967295));
  EXPECT_THAT(*ParseTokenIds(" "), IsEmpty());
}

TEST(ParseTokenIds, NamesTheWordThatIsNoId) {
  for (const char* text : {"1,x", "-1", "4294967296", "1.5", "7z"}) {
    const auto ids = ParseTokenIds(text);
    EXPECT_TRUE(absl::IsInvalidArgument(ids.status())) << text;
  }
  EXPECT_THAT(std::string(ParseTokenIds("1,x").status().message()),
              HasSubstr("\"x\""));
}

TEST(CutText, KeepsCharactersWhole) {
  const std::string text = "ab\u20ac\U0001F600c";  // 2 + 3 + 4 + 1 bytes
  EXPECT_THAT(CutText(text, 100), ElementsAre(text));
  EXPECT_THAT(CutText(text, 4), ElementsAre("ab", "\u20ac", "\U0001F600", "c"));
  EXPECT_THAT(CutText(text, 5), ElementsAre("ab\u20ac", "\U0001F600c"));
  EXPECT_THAT(CutText("", 4), IsEmpty());
}

TEST(ReadText, ReadsAFileAndNamesOneThatIsMissing) {
  const std::string path = ::testing::TempDir() + "/kf_read_text.txt";
  std::ofstream(path) << "two\nlines\n";
  EXPECT_EQ(*ReadText(path), "two\nlines\n");
  std::ofstream(path) << "bad \xFF";
  EXPECT_THAT(std::string(ReadText(path).status().message()),
              HasSubstr("not UTF-8 at byte 4"));
  std::remove(path.c_str());
  const auto missing = ReadText(path);
  EXPECT_TRUE(absl::IsNotFound(missing.status()));
  EXPECT_THAT(std::string(missing.status().message()), HasSubstr(path));
}

}  // namespace
}  // namespace kf::tools
