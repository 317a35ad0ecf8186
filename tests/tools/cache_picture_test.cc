#include "tools/client_lib/cache_picture.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace kf::tools {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

// Every element is closed in order, attributes are quoted, and no stray < or &
// is left: enough of XML for what is written here.
std::string XmlFault(const std::string& xml) {
  std::vector<std::string> open;
  for (size_t at = 0; at < xml.size();) {
    if (xml[at] == '&') {
      const size_t end = xml.find(';', at);
      if (end == xml.npos || end - at > 5) return "bare &";
      at = end;
    } else if (xml[at] == '<') {
      const size_t end = xml.find('>', at);
      if (end == xml.npos) return "unclosed tag";
      const std::string tag = xml.substr(at + 1, end - at - 1);
      if (tag.find('<') != tag.npos) return "< inside a tag: " + tag;
      const std::string name = tag.substr(0, tag.find_first_of(" /\n"));
      if (tag[0] == '/') {
        if (open.empty() || open.back() != tag.substr(1)) return "/" + tag;
        open.pop_back();
      } else if (tag[0] != '?' && tag.back() != '/') {
        open.push_back(name);
      }
      at = end;
    }
    ++at;
  }
  return open.empty() ? "" : "open: " + open.back();
}

TEST(CachePicture, DrawsRunsOfEqualCells) {
  // A layer of two heads: both hold 0 and 1, one holds 3.
  const std::string svg = CachePicture("t", {{"p", {{{0, 1, 3}, {0, 1}}}}}, 4);
  EXPECT_EQ(XmlFault(svg), "");
  EXPECT_THAT(svg, HasSubstr("<path class=\"l8\" d=\"M0 0h2v1H0z\"/>"));
  EXPECT_THAT(svg, HasSubstr("<path class=\"l4\" d=\"M3 0h1v1H3z\"/>"));
  EXPECT_THAT(svg, Not(HasSubstr("answer")));
}

// As a server that is wrong might say: more of a cell than there is.
TEST(CachePicture, PositionsSaidTwiceAreDark) {
  const std::string svg =
      CachePicture("t", {{"p", {{{0, 0, 0, 0, 0, 0, 0, 0, 0}}}}}, 1);
  EXPECT_EQ(XmlFault(svg), "");
  EXPECT_THAT(svg, HasSubstr("<path class=\"l8\" d=\"M0 0h1v1H0z\"/>"));
}

TEST(CachePicture, MarksWhereTheAnswerBegins) {
  const std::string svg = CachePicture("t", {{"p", {{{0, 7}}}}}, 4);
  EXPECT_THAT(svg, HasSubstr(">answer<"));
  EXPECT_THAT(svg, HasSubstr("x1=\"572\""));  // 60 + 1024 / 2
}

TEST(CachePicture, EscapesItsTitles) {
  const std::string svg = CachePicture("a<b>&\"\x01", {{"<script>", {}}}, 1);
  EXPECT_EQ(XmlFault(svg), "");
  EXPECT_THAT(svg, HasSubstr("a&lt;b&gt;&amp;\"?"));
  EXPECT_THAT(svg, Not(HasSubstr("<script>")));
  EXPECT_EQ(XmlFault(CachePicture("\xFF", {}, 0)), "");
}

// However long the prompt and deep the model, and even if every other token is
// held so that no two cells join.
TEST(CachePicture, IsBoundedInSize) {
  HeldPositions held(300);
  for (auto& layer : held) {
    layer.resize(2);
    for (uint32_t i = 0; i < 4096; ++i) {
      if (i / 8 % 2 == 0) layer[0].push_back(i);
    }
  }
  const std::string svg = CachePicture("t", {{"a", held}, {"b", held}}, 4096);
  EXPECT_EQ(XmlFault(svg), "");
  EXPECT_LT(svg.size(), size_t{2} << 20);
  // A server's word is not taken for what memory to spend.
  const std::string far =
      CachePicture("t", {{"a", {{{0, 4294967295U}}}}}, 4294967295U);
  EXPECT_EQ(XmlFault(far), "");
  EXPECT_LT(far.size(), size_t{1} << 14);
}

}  // namespace
}  // namespace kf::tools
