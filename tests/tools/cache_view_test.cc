#include "tools/client_lib/cache_view.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tools/client_lib/text_input.h"

namespace kf::tools {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

std::string Signs(const std::vector<std::string>& tokens,
                  const std::vector<double>& retention) {
  return CacheView(tokens, retention, CacheMarks::kSigns);
}

TEST(CacheView, GradesTokensByTheirShare) {
  EXPECT_EQ(Signs({"The", " quick", " brown", " fox", " jumps"},
                  {1.0, 0.0, 0.49, 0.5, 1.0}),
            "The[- quick-]< brown>( fox) jumps");
}

TEST(CacheView, JoinsNeighboursOfOneGrade) {
  EXPECT_EQ(Signs({"a", "b", "c", "d"}, {0.1, 0.2, 0.0, 0.0}), "<ab>[-cd-]");
}

TEST(CacheView, ColoursAreTerminalAttributesThatEnd) {
  EXPECT_EQ(CacheView({"a", "b", "c", "d"}, {1.0, 0.6, 0.2, 0.0},
                      CacheMarks::kColour),
            "\x1b[1ma\x1b[0mb\x1b[2mc\x1b[0m\x1b[2;9md\x1b[0m");
}

TEST(CacheView, LinesStayLines) {
  EXPECT_EQ(Signs({"a\n", "\tb"}, {0.0, 0.0}), "[-a-]\n[-\tb-]");
}

// U+20AC of three tokens, one of them gone: one character, as gone as that.
TEST(CacheView, NeverSplitsACharacter) {
  EXPECT_EQ(Signs({"x", "\xE2", "\x82", "\xAC", "y"}, {1, 1, 0, 1, 1}),
            "x[-\u20ac-]y");
  // Cut off by the report's end, and bytes that are no UTF-8.
  EXPECT_EQ(Signs({"\xE2\x82"}, {1.0}), "\uFFFD\uFFFD");
  EXPECT_EQ(Signs({"\xFF", "a", "\xC0\x80"}, {1, 1, 1}), "\uFFFDa\uFFFD\uFFFD");
}

TEST(CacheView, EscapesWhatWouldSteerATerminal) {
  EXPECT_EQ(
      Signs({"\x1b[31mred", "\r", "\x7f", std::string(1, '\0')}, {1, 1, 1, 1}),
      "\\x1b[31mred\\x0d\\x7f\\x00");
  EXPECT_EQ(Signs({"\u009b", "\u202e", "\u2066", "\u2028"}, {1, 1, 1, 1}),
            "\\x9b\\u202e\\u2066\\u2028");
  const std::string bytes = [] {
    std::string all;
    for (int c = 0; c < 256; ++c) all += static_cast<char>(c);
    return all;
  }();
  const std::string view = Signs({bytes}, {1.0});
  EXPECT_FALSE(FindInvalidUtf8(view).has_value());
  EXPECT_THAT(view, Not(HasSubstr("\x1b")));
}

TEST(CacheView, SharesThatAreNoneCountAsLost) {
  EXPECT_EQ(Signs({"a", "b"}, {std::nan(""), -1.0}), "[-ab-]");
}

TEST(CacheView, TakesTheShorterOfBoth) {
  EXPECT_EQ(Signs({"a", "b"}, {1.0}), "a");
  EXPECT_EQ(Signs({"a"}, {1.0, 0.0}), "a");
  EXPECT_EQ(Signs({}, {}), "");
}

TEST(CacheView, LegendUsesTheMarks) {
  EXPECT_EQ(CacheLegend(CacheMarks::kSigns),
            "held by every head, (by half or more), <by fewer>, [-by none-]");
}

TEST(CacheView, MeanOfShares) {
  EXPECT_EQ(MeanRetention({}), 0.0);
  EXPECT_EQ(MeanRetention({1.0, 0.0, 0.5}), 0.5);
}

}  // namespace
}  // namespace kf::tools
