#include "engine/tokenizer/utf8.h"

namespace kf::engine {
namespace {

uint8_t ByteAt(std::string_view text, size_t pos) {
  return static_cast<uint8_t>(text[pos]);
}

}  // namespace

Utf8Step NextUtf8(std::string_view text, size_t pos) {
  const uint8_t lead = ByteAt(text, pos);
  if (lead < 0x80) return {Utf8Kind::kValid, 1, lead};
  // The second byte's range excludes overlong forms, surrogates and values
  // above U+10FFFF (Unicode standard, table 3-7).
  size_t length = 0;
  uint8_t low = 0x80;
  uint8_t high = 0xBF;
  char32_t value = 0;
  if (lead >= 0xC2 && lead <= 0xDF) {
    length = 2;
    value = lead & 0x1FU;
  } else if (lead >= 0xE0 && lead <= 0xEF) {
    length = 3;
    value = lead & 0x0FU;
    if (lead == 0xE0) low = 0xA0;
    if (lead == 0xED) high = 0x9F;
  } else if (lead >= 0xF0 && lead <= 0xF4) {
    length = 4;
    value = lead & 0x07U;
    if (lead == 0xF0) low = 0x90;
    if (lead == 0xF4) high = 0x8F;
  } else {
    return {Utf8Kind::kInvalid, 1, 0};
  }
  for (size_t i = 1; i < length; ++i) {
    if (pos + i == text.size()) return {Utf8Kind::kIncomplete, i, 0};
    const uint8_t byte = ByteAt(text, pos + i);
    if (byte < low || byte > high) return {Utf8Kind::kInvalid, i, 0};
    value = (value << 6) | (byte & 0x3FU);
    low = 0x80;
    high = 0xBF;
  }
  return {Utf8Kind::kValid, length, value};
}

size_t ValidUtf8Prefix(std::string_view text) {
  size_t pos = 0;
  while (pos < text.size()) {
    const Utf8Step step = NextUtf8(text, pos);
    if (step.kind != Utf8Kind::kValid) return pos;
    pos += step.length;
  }
  return pos;
}

void AppendUtf8(char32_t code_point, std::string& out) {
  const auto put = [&out](char32_t byte) {
    out.push_back(static_cast<char>(static_cast<uint8_t>(byte)));
  };
  if (code_point < 0x80) {
    put(code_point);
  } else if (code_point < 0x800) {
    put(0xC0U | (code_point >> 6));
    put(0x80U | (code_point & 0x3FU));
  } else if (code_point < 0x10000) {
    put(0xE0U | (code_point >> 12));
    put(0x80U | ((code_point >> 6) & 0x3FU));
    put(0x80U | (code_point & 0x3FU));
  } else {
    put(0xF0U | (code_point >> 18));
    put(0x80U | ((code_point >> 12) & 0x3FU));
    put(0x80U | ((code_point >> 6) & 0x3FU));
    put(0x80U | (code_point & 0x3FU));
  }
}

}  // namespace kf::engine
