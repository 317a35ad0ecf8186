#include "server/log.h"

#include <spdlog/details/log_msg.h>

#include <nlohmann/json.hpp>
#include <string>

#include "tests/testing/matchers.h"

namespace kf::server {
namespace {

using ::testing::EndsWith;
using ::testing::HasSubstr;

std::string Format(LogFormat format, const std::string& message) {
  spdlog::memory_buf_t out;
  MakeLogFormatter(format)->format(
      spdlog::details::log_msg("server", spdlog::level::warn, message), out);
  return {out.data(), out.size()};
}

TEST(Log, JsonLinesParseWhateverTheMessageHolds) {
  const std::string nasty = "a\"b\\c\nd\te\x01\x7F h\xC3\xA9 \xFF\xC3";
  const std::string line = Format(LogFormat::kJson, nasty);
  EXPECT_EQ(std::count(line.begin(), line.end(), '\n'), 1);
  const auto json = nlohmann::json::parse(line);
  EXPECT_EQ(json["level"], "warning");
  EXPECT_EQ(json["message"],
            "a\"b\\c\nd\te\x01\x7F h\xC3\xA9 \xEF\xBF\xBD\xEF\xBF\xBD");
  EXPECT_THAT(json["time"].get<std::string>(), EndsWith("Z"));
}

TEST(Log, TextLinesCannotBeForged) {
  const std::string line =
      Format(LogFormat::kText, "id=\"x\"\n2026-01-01 info all is well\x1B[2J");
  EXPECT_EQ(std::count(line.begin(), line.end(), '\n'), 1);
  EXPECT_EQ(line.find('\x1B'), std::string::npos);
  EXPECT_THAT(line, HasSubstr(" warning id=\"x\"\\n2026"));
  // The second control sequence introducer, as one character.
  EXPECT_THAT(Format(LogFormat::kText, "\xC2\x9B\xC2\xA0"),
              EndsWith(" \\u009b\xC2\xA0\n"));
}

TEST(Log, AQuotedValueCannotEndItsQuotes) {
  const std::string message = "id=\"" + EscapeJson("a\" peer=\\\"b") + "\"";
  EXPECT_THAT(Format(LogFormat::kText, message),
              EndsWith(" id=\"a\\\" peer=\\\\\\\"b\"\n"));
  EXPECT_EQ(nlohmann::json::parse(Format(LogFormat::kJson, message))["message"],
            message);
}

}  // namespace
}  // namespace kf::server
