// Cuts a Jinja template into text and the tokens of its tags, with the white
// space rules that chat templates are written for: trim_blocks, lstrip_blocks,
// and the signs of "{%-", "-%}", "{%+".
//
// Source: Jinja 3 documentation, "Whitespace Control".
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace kf::engine {

enum class JinjaTokenKind : uint8_t {
  kText,  // outside of tags
  kBlockBegin,
  kBlockEnd,
  kOutputBegin,
  kOutputEnd,
  kName,
  kInteger,
  kString,  // text: the value, escapes resolved
  kOperator,
  kEnd,  // of the template; always the last token
};

struct JinjaToken {
  JinjaTokenKind kind = JinjaTokenKind::kEnd;
  std::string text;
  int line = 0;
};

// kFailedPrecondition gives the line. `source` is UTF-8 with \n line ends.
absl::StatusOr<std::vector<JinjaToken>> LexJinja(std::string_view source);

// "chat template line 3: ...".
absl::Status JinjaError(int line, std::string_view what);

}  // namespace kf::engine
