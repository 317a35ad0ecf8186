// spdlog set up once: a line a message on standard error, as text or JSON.
// Anything a client chose is escaped, so that it can forge no line.
#pragma once

#include <spdlog/formatter.h>

#include <memory>
#include <string>
#include <string_view>

#include "server/options.h"

namespace kf::server {

// Replaces spdlog's default logger. `level` is one that spdlog knows.
void SetUpLogging(LogFormat format, const std::string& level);

// The formatter behind it: "2026-01-31T12:00:00.123Z info message" or
// {"time":"...","level":"info","message":"..."}. Escapes control characters;
// text it quotes inside a message the caller escapes, with EscapeJson.
std::unique_ptr<spdlog::formatter> MakeLogFormatter(LogFormat format);

// `text` as the inside of a JSON string: quotes, backslashes and control
// characters escaped, bytes that are no UTF-8 replaced by U+FFFD.
std::string EscapeJson(std::string_view text);

}  // namespace kf::server
