#include "server/log.h"

#include <spdlog/pattern_formatter.h>
#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>

#include <chrono>
#include <cstdio>
#include <ctime>
#include <utility>

#include "server/utf8.h"

namespace kf::server {
namespace {

std::string Timestamp(spdlog::log_clock::time_point time) {
  const auto since = time.time_since_epoch();
  const std::time_t seconds =
      std::chrono::duration_cast<std::chrono::seconds>(since).count();
  const auto millis =
      std::chrono::duration_cast<std::chrono::milliseconds>(since).count() %
      1000;
  std::tm utc = {};
  gmtime_r(&seconds, &utc);
  char date[32];
  std::strftime(date, sizeof(date), "%Y-%m-%dT%H:%M:%S", &utc);
  char text[48];
  std::snprintf(text, sizeof(text), "%s.%03dZ", date, static_cast<int>(millis));
  return text;
}

// Control characters and bytes that are no UTF-8 made harmless; quotes and
// backslashes escaped too if asked for.
std::string Escape(std::string_view text, bool quotes) {
  std::string out;
  out.reserve(text.size() + 8);
  const auto escape = [&out](unsigned code) {
    char text_of_code[8];
    std::snprintf(text_of_code, sizeof(text_of_code), "\\u%04x", code);
    out += text_of_code;
  };
  while (!text.empty()) {
    const size_t valid = ValidUtf8Prefix(text);
    for (size_t i = 0; i < valid; ++i) {
      const auto byte = static_cast<unsigned char>(text[i]);
      if (quotes && (byte == '"' || byte == '\\')) {
        out += '\\';
        out += text[i];
      } else if (byte == '\n') {
        out += "\\n";
      } else if (byte < 0x20 || byte == 0x7F) {
        escape(byte);
      } else if (byte == 0xC2 &&
                 static_cast<unsigned char>(text[i + 1]) < 0xA0) {
        // U+0080 to U+009F: terminals obey these too.
        escape(static_cast<unsigned char>(text[++i]));
      } else {
        out += text[i];
      }
    }
    if (valid == text.size()) break;
    out += "\xEF\xBF\xBD";
    text.remove_prefix(valid + 1);
  }
  return out;
}

class LineFormatter final : public spdlog::formatter {
 public:
  explicit LineFormatter(LogFormat format) : format_(format) {}

  void format(const spdlog::details::log_msg& message,
              spdlog::memory_buf_t& out) override {
    const auto level = spdlog::level::to_string_view(message.level);
    const std::string level_name(level.data(), level.size());
    const std::string_view text(message.payload.data(), message.payload.size());
    std::string line;
    if (format_ == LogFormat::kJson) {
      line = "{\"time\":\"" + Timestamp(message.time) + "\",\"level\":\"" +
             level_name + "\",\"message\":\"" + EscapeJson(text) + "\"}\n";
    } else {
      // Not the quotes: those of what a client chose are escaped already.
      line = Timestamp(message.time) + " " + level_name + " " +
             Escape(text, /*quotes=*/false) + "\n";
    }
    out.append(line.data(), line.data() + line.size());
  }

  std::unique_ptr<spdlog::formatter> clone() const override {
    return std::make_unique<LineFormatter>(format_);
  }

 private:
  LogFormat format_;
};

}  // namespace

std::string EscapeJson(std::string_view text) {
  return Escape(text, /*quotes=*/true);
}

std::unique_ptr<spdlog::formatter> MakeLogFormatter(LogFormat format) {
  return std::make_unique<LineFormatter>(format);
}

void SetUpLogging(LogFormat format, const std::string& level) {
  auto logger = std::make_shared<spdlog::logger>(
      "server", std::make_shared<spdlog::sinks::stderr_sink_mt>());
  logger->set_formatter(MakeLogFormatter(format));
  logger->set_level(spdlog::level::from_str(level));
  logger->flush_on(spdlog::level::info);
  spdlog::set_default_logger(std::move(logger));
}

}  // namespace kf::server
