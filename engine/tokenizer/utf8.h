// UTF-8 one step at a time: what validation, decoding and code point walks
// share.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace kf::engine {

enum class Utf8Kind : uint8_t {
  kValid,       // a whole code point
  kInvalid,     // bytes that no continuation can make valid
  kIncomplete,  // a code point cut by the end of the text
};

struct Utf8Step {
  Utf8Kind kind = Utf8Kind::kValid;
  // Bytes of the code point, or of the maximal invalid or unfinished part (what
  // one U+FFFD stands for in the WHATWG decoder and in Python's "replace").
  size_t length = 0;
  char32_t code_point = 0;  // kValid alone
};

// The step at text[pos]; pos < text.size().
Utf8Step NextUtf8(std::string_view text, size_t pos);

// Length of the longest valid prefix; text.size() if all of it is UTF-8.
size_t ValidUtf8Prefix(std::string_view text);

// `code_point` is a Unicode scalar value.
void AppendUtf8(char32_t code_point, std::string& out);

inline constexpr std::string_view kReplacementCharacter = "\xEF\xBF\xBD";

}  // namespace kf::engine
