// GPT-2's stand-ins for bytes, in which byte-level vocabularies are written
// (Radford et al. 2019, bytes_to_unicode).
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace kf::engine {

// Index: byte. Printable Latin-1 stands for itself, the other 68 bytes, in
// order, for U+0100 on.
constexpr std::array<uint16_t, 256> ByteLevelCodes() {
  std::array<uint16_t, 256> codes = {};
  uint16_t next = 0x100;
  for (size_t byte = 0; byte < codes.size(); ++byte) {
    const bool printable = (byte >= 0x21 && byte <= 0x7E) ||
                           (byte >= 0xA1 && byte <= 0xAC) || byte >= 0xAE;
    codes[byte] = printable ? static_cast<uint16_t>(byte) : next++;
  }
  return codes;
}

// A token for each byte, in order, in UTF-8.
inline std::vector<std::string> ByteLevelTokens() {
  std::vector<std::string> tokens;
  for (const uint16_t code : ByteLevelCodes()) {
    std::string& token = tokens.emplace_back();
    if (code < 0x80) {
      token.push_back(static_cast<char>(code));
    } else {
      token.push_back(static_cast<char>(0xC0U | (code >> 6U)));
      token.push_back(static_cast<char>(0x80U | (code & 0x3FU)));
    }
  }
  return tokens;
}

}  // namespace kf::engine
