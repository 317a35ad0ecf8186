// Text that a person hands to a tool: from an argument, a file or standard
// input, checked to be UTF-8 before anything is sent.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

namespace kf::tools {

// Input beyond this is refused instead of read: the server's own limit on a
// message is smaller.
inline constexpr size_t kMaxInputBytes = size_t{64} << 20;

// The offset of the first byte that is not part of well-formed UTF-8 (no
// surrogates, nothing overlong, at most U+10FFFF); nullopt if all is well.
std::optional<size_t> FindInvalidUtf8(std::string_view text);

// kInvalidArgument naming `what` and the byte offset.
absl::Status CheckUtf8(std::string_view text, std::string_view what);

// `text`, which is UTF-8, in pieces of at most `limit` bytes (>= 4); no piece
// ends inside a character.
std::vector<std::string_view> CutText(std::string_view text, size_t limit);

// The whole of `path`, "-" being standard input; UTF-8 or an error.
absl::StatusOr<std::string> ReadText(const std::string& path);

// "1,2, 3" or "1 2 3" as ids; kInvalidArgument names the word that is none.
absl::StatusOr<std::vector<uint32_t>> ParseTokenIds(std::string_view text);

}  // namespace kf::tools
