// UTF-8 checks for what comes from outside.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace kf::server {

// Length of the longest prefix of `text` that is well-formed UTF-8 (no
// surrogates, nothing overlong, at most U+10FFFF). text.size(): all of it.
size_t ValidUtf8Prefix(std::string_view text);

// At most `limit` bytes of `text`, not ending inside a character.
std::string CutUtf8(std::string_view text, size_t limit);

}  // namespace kf::server
