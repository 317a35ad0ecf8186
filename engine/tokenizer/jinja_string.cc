#include "engine/tokenizer/jinja_string.h"

#include <utf8proc.h>

#include <algorithm>

#include "engine/tokenizer/utf8.h"

namespace kf::engine {
namespace {

// Python's str.isspace for one code point.
bool IsSpace(char32_t c) {
  return (c >= 0x09 && c <= 0x0D) || (c >= 0x1C && c <= 0x20) || c == 0x85 ||
         c == 0xA0 || c == 0x1680 || (c >= 0x2000 && c <= 0x200A) ||
         c == 0x2028 || c == 0x2029 || c == 0x202F || c == 0x205F ||
         c == 0x3000;
}

}  // namespace

void JinjaString::Append(std::string_view text, bool trusted) {
  if (text.empty()) return;
  text_ += text;
  if (!runs_.empty() && runs_.back().trusted == trusted) {
    runs_.back().end = text_.size();
  } else {
    runs_.push_back({text_.size(), trusted});
  }
}

void JinjaString::Append(const JinjaString& other) {
  size_t begin = 0;
  for (const Run& run : other.runs_) {
    Append(other.text().substr(begin, run.end - begin), run.trusted);
    begin = run.end;
  }
}

JinjaString JinjaString::Slice(size_t begin, size_t end) const {
  JinjaString out;
  auto run = std::ranges::upper_bound(runs_, begin, {}, &Run::end);
  while (begin < end) {
    const size_t stop = std::min(run->end, end);
    out.Append(text().substr(begin, stop - begin), run->trusted);
    begin = stop;
    ++run;
  }
  return out;
}

template <typename Map>
JinjaString JinjaString::MapCodePoints(const Map& map) const {
  JinjaString out;
  size_t begin = 0;
  for (const Run& run : runs_) {
    std::string mapped;
    while (begin < run.end) {
      const Utf8Step step = NextUtf8(text_, begin);
      AppendUtf8(map(step.code_point), mapped);
      begin += step.length;
    }
    out.Append(mapped, run.trusted);
  }
  return out;
}

JinjaString JinjaString::Upper() const {
  return MapCodePoints([](char32_t c) {
    return static_cast<char32_t>(
        utf8proc_toupper(static_cast<utf8proc_int32_t>(c)));
  });
}

JinjaString JinjaString::Lower() const {
  return MapCodePoints([](char32_t c) {
    return static_cast<char32_t>(
        utf8proc_tolower(static_cast<utf8proc_int32_t>(c)));
  });
}

JinjaString JinjaString::Strip(std::string_view chars,
                               bool left,
                               bool right) const {
  const auto stripped = [chars](std::string_view character, char32_t value) {
    return chars.empty() ? IsSpace(value)
                         : chars.find(character) != std::string_view::npos;
  };
  size_t begin = 0;
  size_t end = 0;  // behind the last character that stays
  bool leading = left;
  for (size_t pos = 0; pos < size();) {
    const Utf8Step step = NextUtf8(text_, pos);
    const bool strip =
        stripped(text().substr(pos, step.length), step.code_point);
    pos += step.length;
    if (leading && strip) begin = pos;
    leading &= strip;
    if (!strip || !right) end = pos;
  }
  return Slice(begin, std::max(begin, end));
}

JinjaString JinjaString::Replace(std::string_view from,
                                 const JinjaString& to) const {
  JinjaString out;
  size_t pos = 0;
  while (true) {
    const size_t found = text_.find(from, pos);
    if (found == std::string::npos) break;
    out.Append(Slice(pos, found));
    out.Append(to);
    pos = found + from.size();
  }
  out.Append(Slice(pos, size()));
  return out;
}

std::vector<ByteRange> JinjaString::TrustedRanges() const {
  std::vector<ByteRange> ranges;
  size_t begin = 0;
  for (const Run& run : runs_) {
    if (run.trusted) ranges.push_back({begin, run.end});
    begin = run.end;
  }
  return ranges;
}

}  // namespace kf::engine
