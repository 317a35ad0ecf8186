#include "server/utf8.h"

#include <algorithm>
#include <cstdint>

namespace kf::server {
namespace {

// Bytes of the well-formed character at text[at], 0 if there is none.
// Source: Unicode 15, table 3-7.
size_t CharacterBytes(std::string_view text, size_t at) {
  const auto byte = [&](size_t i) {
    return static_cast<uint8_t>(text[at + i]);
  };
  const uint8_t first = byte(0);
  if (first < 0x80) return 1;
  if (first < 0xC2 || first > 0xF4) return 0;
  const size_t bytes = first < 0xE0 ? 2 : first < 0xF0 ? 3 : 4;
  if (text.size() - at < bytes) return 0;
  uint8_t low = 0x80;
  uint8_t high = 0xBF;
  if (first == 0xE0) low = 0xA0;
  if (first == 0xED) high = 0x9F;
  if (first == 0xF0) low = 0x90;
  if (first == 0xF4) high = 0x8F;
  if (byte(1) < low || byte(1) > high) return 0;
  for (size_t i = 2; i < bytes; ++i) {
    if ((byte(i) & 0xC0) != 0x80) return 0;
  }
  return bytes;
}

}  // namespace

size_t ValidUtf8Prefix(std::string_view text) {
  size_t at = 0;
  while (at < text.size()) {
    const size_t bytes = CharacterBytes(text, at);
    if (bytes == 0) return at;
    at += bytes;
  }
  return at;
}

std::string CutUtf8(std::string_view text, size_t limit) {
  if (text.size() <= limit) return std::string(text);
  size_t end = limit;
  // A character's first byte is at most three before any of its others.
  for (int back = 0; back < 3 && end > 0; ++back, --end) {
    if ((static_cast<uint8_t>(text[end]) & 0xC0) != 0x80) break;
  }
  return std::string(text.substr(0, end));
}

}  // namespace kf::server
