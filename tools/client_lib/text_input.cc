#include "tools/client_lib/text_input.h"

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstdio>
#include <cstring>
#include <memory>

#include "kernels/core/status.h"

namespace kf::tools {
namespace {

struct CloseFile {
  void operator()(std::FILE* file) const {
    if (file != stdin) std::fclose(file);
  }
};

// Bytes of the character that `lead` opens and the bounds of the second byte,
// as in table 3-7 of the Unicode standard; length 0: no character opens so.
struct Lead {
  size_t length = 0;
  uint8_t low = 0x80;
  uint8_t high = 0xBF;
};

Lead ClassifyLead(uint8_t lead) {
  if (lead < 0x80) return {.length = 1};
  if (lead >= 0xC2 && lead <= 0xDF) return {.length = 2};
  if (lead == 0xE0) return {.length = 3, .low = 0xA0};
  if (lead == 0xED) return {.length = 3, .high = 0x9F};
  if (lead >= 0xE1 && lead <= 0xEF) return {.length = 3};
  if (lead == 0xF0) return {.length = 4, .low = 0x90};
  if (lead == 0xF4) return {.length = 4, .high = 0x8F};
  if (lead >= 0xF1 && lead <= 0xF3) return {.length = 4};
  return {};
}

bool IsSeparator(char c) {
  return c == ',' || c == ' ' || c == '\t' || c == '\n' || c == '\r' ||
         c == '[' || c == ']';
}

}  // namespace

std::optional<size_t> FindInvalidUtf8(std::string_view text) {
  size_t at = 0;
  while (at < text.size()) {
    const Lead lead = ClassifyLead(static_cast<uint8_t>(text[at]));
    if (lead.length == 0 || lead.length > text.size() - at) return at;
    for (size_t i = 1; i < lead.length; ++i) {
      const uint8_t byte = static_cast<uint8_t>(text[at + i]);
      const uint8_t low = i == 1 ? lead.low : 0x80;
      const uint8_t high = i == 1 ? lead.high : 0xBF;
      if (byte < low || byte > high) return at;
    }
    at += lead.length;
  }
  return std::nullopt;
}

absl::Status CheckUtf8(std::string_view text, std::string_view what) {
  const std::optional<size_t> bad = FindInvalidUtf8(text);
  if (!bad) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      ToAbsl(what), ": not UTF-8 at byte ", *bad,
      "; convert it first, for example with iconv -f LATIN1 -t UTF-8"));
}

std::vector<std::string_view> CutText(std::string_view text, size_t limit) {
  std::vector<std::string_view> pieces;
  while (!text.empty()) {
    size_t end = std::min(limit, text.size());
    while (end < text.size() &&
           (static_cast<uint8_t>(text[end]) & 0xC0) == 0x80) {
      --end;
    }
    pieces.push_back(text.substr(0, end));
    text.remove_prefix(end);
  }
  return pieces;
}

absl::StatusOr<std::string> ReadText(const std::string& path) {
  const std::string name = path == "-" ? "standard input" : path;
  const std::unique_ptr<std::FILE, CloseFile> file(
      path == "-" ? stdin : std::fopen(path.c_str(), "rb"));
  if (file == nullptr) {
    return absl::NotFoundError(
        absl::StrCat(name, ": cannot open: ", std::strerror(errno)));
  }
  std::string text;
  char buffer[1 << 16];
  size_t got = 0;
  while ((got = std::fread(buffer, 1, sizeof(buffer), file.get())) > 0) {
    text.append(buffer, got);
    if (text.size() > kMaxInputBytes) {
      return absl::InvalidArgumentError(absl::StrCat(
          name, ": more than the ", kMaxInputBytes, " bytes allowed"));
    }
  }
  if (std::ferror(file.get()) != 0) {
    return absl::UnavailableError(absl::StrCat(name, ": cannot read"));
  }
  KF_RETURN_IF_ERROR(CheckUtf8(text, name));
  return text;
}

absl::StatusOr<std::vector<uint32_t>> ParseTokenIds(std::string_view text) {
  std::vector<uint32_t> ids;
  size_t at = 0;
  while (at < text.size()) {
    if (IsSeparator(text[at])) {
      ++at;
      continue;
    }
    size_t end = at;
    while (end < text.size() && !IsSeparator(text[end])) ++end;
    const std::string_view word = text.substr(at, end - at);
    uint32_t id = 0;
    const auto [last, error] =
        std::from_chars(word.data(), word.data() + word.size(), id);
    if (error != std::errc() || last != word.data() + word.size()) {
      return absl::InvalidArgumentError(
          absl::StrCat("token id \"", ToAbsl(word.substr(0, 40)),
                       "\": want a number from 0 to 4294967295"));
    }
    ids.push_back(id);
    at = end;
  }
  return ids;
}

}  // namespace kf::tools
