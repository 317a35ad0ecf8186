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

class LineFormatter final : public spdlog::formatter {
 public:
  explicit LineFormatter(LogFormat format) : format_(format) {}

  void format(const spdlog::details::log_msg& message,
              spdlog::memory_buf_t& out) override {
    const auto level = spdlog::level::to_string_view(message.level);
    const std::string level_name(level.data(), level.size());
    const std::string text = EscapeJson(
        std::string_view(message.payload.data(), message.payload.size()));
    std::string line;
    if (format_ == LogFormat::kJson) {
      line = "{\"time\":\"" + Timestamp(message.time) + "\",\"level\":\"" +
             level_name + "\",\"message\":\"" + text + "\"}\n";
    } else {
      // Quotes need no escape in text; the escapes of the rest stay.
      std::string plain;
      for (size_t i = 0; i < text.size(); ++i) {
        if (text[i] == '\\' && i + 1 < text.size() && text[i + 1] == '"') ++i;
        plain += text[i];
      }
      line = Timestamp(message.time) + " " + level_name + " " + plain + "\n";
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
  std::string out;
  out.reserve(text.size() + 8);
  while (!text.empty()) {
    const size_t valid = ValidUtf8Prefix(text);
    for (const char c : text.substr(0, valid)) {
      if (c == '"' || c == '\\') {
        out += '\\';
        out += c;
      } else if (c == '\n') {
        out += "\\n";
      } else if (static_cast<unsigned char>(c) < 0x20 || c == 0x7F) {
        char escape[8];
        std::snprintf(escape, sizeof(escape), "\\u%04x",
                      static_cast<unsigned>(c));
        out += escape;
      } else {
        out += c;
      }
    }
    if (valid == text.size()) break;
    out += "\xEF\xBF\xBD";
    text.remove_prefix(valid + 1);
  }
  return out;
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
