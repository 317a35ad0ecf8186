#include "tools/client_lib/cache_view.h"

#include <algorithm>
#include <cstdio>
#include <numeric>
#include <string_view>

#include "tools/client_lib/text_input.h"

namespace kf::tools {
namespace {

// From lost to kept.
constexpr int kGrades = 4;

int GradeOf(double share) {
  if (!(share > 0.0)) return 0;
  if (share < 0.5) return 1;
  return share < 1.0 ? 2 : 3;
}

struct Marks {
  std::string_view open;
  std::string_view close;
};

const Marks& MarksOf(CacheMarks marks, int grade) {
  static constexpr Marks kColours[kGrades] = {{"\x1b[2;9m", "\x1b[0m"},
                                              {"\x1b[2m", "\x1b[0m"},
                                              {"", ""},
                                              {"\x1b[1m", "\x1b[0m"}};
  static constexpr Marks kSigns[kGrades] = {
      {"[-", "-]"}, {"<", ">"}, {"(", ")"}, {"", ""}};
  return marks == CacheMarks::kColour ? kColours[grade] : kSigns[grade];
}

// The character's code point; `text` is one well-formed character.
uint32_t CodePoint(std::string_view text) {
  const auto byte = [&](size_t i) { return static_cast<uint8_t>(text[i]); };
  if (text.size() == 1) return byte(0);
  uint32_t code = byte(0) & (0x7FU >> text.size());
  for (size_t i = 1; i < text.size(); ++i) code = code << 6 | (byte(i) & 0x3FU);
  return code;
}

bool IsHarmful(uint32_t code) {
  if (code == '\n' || code == '\t') return false;
  return code < 0x20 || (code >= 0x7F && code < 0xA0) ||  // control
         code == 0x200E || code == 0x200F || code == 0x061C ||
         (code >= 0x2028 && code <= 0x202E) ||  // separators, direction
         (code >= 0x2066 && code <= 0x2069);
}

std::string Printable(std::string_view character) {
  const uint32_t code = CodePoint(character);
  if (!IsHarmful(code)) return std::string(character);
  char escaped[16];
  std::snprintf(escaped, sizeof(escaped), code < 0x100 ? "\\x%02x" : "\\u%04x",
                static_cast<unsigned>(code));
  return escaped;
}

// Bytes of the character at the front of `text`; 0 if there is none.
size_t CharacterSize(std::string_view text) {
  for (size_t size = 1; size <= std::min<size_t>(4, text.size()); ++size) {
    if (!FindInvalidUtf8(text.substr(0, size))) return size;
  }
  return 0;
}

}  // namespace

std::string CacheView(const std::vector<std::string>& tokens,
                      const std::vector<double>& retention,
                      CacheMarks marks) {
  std::string text;
  std::vector<double> share;  // of each byte's token
  for (size_t i = 0; i < std::min(tokens.size(), retention.size()); ++i) {
    text += tokens[i];
    share.insert(share.end(), tokens[i].size(), retention[i]);
  }
  std::string out;
  int grade = kGrades - 1;
  bool open = false;
  const auto close = [&] {
    if (open) out += MarksOf(marks, grade).close;
    open = false;
  };
  for (size_t at = 0; at < text.size();) {
    const size_t size = CharacterSize(std::string_view(text).substr(at));
    const size_t bytes = std::max<size_t>(size, 1);
    const auto first = share.begin() + static_cast<std::ptrdiff_t>(at);
    const int next = GradeOf(
        *std::min_element(first, first + static_cast<std::ptrdiff_t>(bytes)));
    // No attribute, and no sign, reaches over the end of a line.
    const bool newline = size == 1 && text[at] == '\n';
    if (next != grade || newline) close();
    grade = next;
    if (!open && !newline) {
      out += MarksOf(marks, grade).open;
      open = true;
    }
    out += size == 0 ? "\xEF\xBF\xBD"
                     : Printable(std::string_view(text).substr(at, size));
    at += bytes;
  }
  close();
  return out;
}

std::string CacheLegend(CacheMarks marks) {
  const auto word = [&](int grade, const std::string& text) {
    const Marks& m = MarksOf(marks, grade);
    return std::string(m.open) + text + std::string(m.close);
  };
  return word(3, "held by every head") + ", " + word(2, "by half or more") +
         ", " + word(1, "by fewer") + ", " + word(0, "by none");
}

double MeanRetention(const std::vector<double>& retention) {
  if (retention.empty()) return 0.0;
  return std::accumulate(retention.begin(), retention.end(), 0.0) /
         static_cast<double>(retention.size());
}

}  // namespace kf::tools
