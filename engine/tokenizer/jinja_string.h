// Text that remembers which of its bytes the chat template wrote and which came
// from a message: only the former may become control tokens.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "engine/tokenizer/special_matcher.h"

namespace kf::engine {

// A value type, UTF-8. Thread-compatible.
class JinjaString {
 public:
  JinjaString() = default;
  // trusted: written by the template.
  JinjaString(std::string_view text, bool trusted) { Append(text, trusted); }

  std::string_view text() const { return text_; }
  size_t size() const { return text_.size(); }
  bool empty() const { return text_.empty(); }

  void Append(std::string_view text, bool trusted);
  void Append(const JinjaString& other);

  // Bytes [begin, end), begin <= end <= size().
  JinjaString Slice(size_t begin, size_t end) const;
  // Letter case by code point (utf8proc's simple mappings).
  JinjaString Upper() const;
  JinjaString Lower() const;
  // Without the code points of `chars` at either end; empty `chars` means white
  // space, as Python's str.strip.
  JinjaString Strip(std::string_view chars, bool left, bool right) const;
  // Every `from` (not empty) becomes `to`.
  JinjaString Replace(std::string_view from, const JinjaString& to) const;

  // Ascending, disjoint, not touching.
  std::vector<ByteRange> TrustedRanges() const;

 private:
  struct Run {
    size_t end;
    bool trusted;
  };
  template <typename Map>
  JinjaString MapCodePoints(const Map& map) const;

  std::string text_;
  std::vector<Run> runs_;  // ascending ends, the last is size(); alternating
};

}  // namespace kf::engine
