#include "engine/tokenizer/jinja_lexer.h"

#include <algorithm>
#include <utility>

#include "engine/tokenizer/utf8.h"
#include "kernels/core/status.h"

namespace kf::engine {
namespace {

constexpr std::string_view kSpaces = " \t\n\r\v\f";

bool IsSpace(char c) { return kSpaces.find(c) != std::string_view::npos; }
bool IsDigit(char c) { return c >= '0' && c <= '9'; }
bool IsNameStart(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_';
}

class Lexer {
 public:
  explicit Lexer(std::string_view source) : source_(source) {}

  absl::StatusOr<std::vector<JinjaToken>> Run() {
    while (pos_ < source_.size()) {
      const size_t tag = FindTag();
      if (tag == source_.size()) {
        Emit(JinjaTokenKind::kText, source_.substr(pos_));
        break;
      }
      const char kind = source_[tag + 1];
      EmitTextBefore(tag, kind);
      MoveTo(tag + 2);
      if (pos_ < source_.size() &&
          (source_[pos_] == '-' || source_[pos_] == '+')) {
        MoveTo(pos_ + 1);
      }
      if (kind == '#') {
        KF_RETURN_IF_ERROR(SkipComment());
      } else {
        KF_RETURN_IF_ERROR(LexTag(kind == '%'));
      }
    }
    Emit(JinjaTokenKind::kEnd, {});
    return std::move(tokens_);
  }

 private:
  void Emit(JinjaTokenKind kind, std::string_view text) {
    if (kind == JinjaTokenKind::kText && text.empty()) return;
    tokens_.push_back({kind, std::string(text), line_});
  }

  void MoveTo(size_t pos) {
    line_ += static_cast<int>(
        std::ranges::count(source_.substr(pos_, pos - pos_), '\n'));
    pos_ = pos;
  }

  // The next "{{", "{%" or "{#", or the end.
  size_t FindTag() const {
    size_t at = pos_;
    while ((at = source_.find('{', at)) != std::string_view::npos) {
      if (at + 1 < source_.size() &&
          std::string_view("{%#").find(source_[at + 1]) !=
              std::string_view::npos) {
        return at;
      }
      ++at;
    }
    return source_.size();
  }

  void EmitTextBefore(size_t tag, char kind) {
    std::string_view text = source_.substr(pos_, tag - pos_);
    const char sign = tag + 2 < source_.size() ? source_[tag + 2] : '\0';
    if (sign == '-') {
      text = text.substr(0, text.find_last_not_of(kSpaces) + 1);
    } else if (sign != '+' && kind != '{') {
      // lstrip_blocks: white space between the line's start and the tag.
      const size_t line_start = text.rfind('\n') + 1;
      const bool starts_line = line_start > 0 || line_starting_;
      if (starts_line && text.find_first_not_of(kSpaces, line_start) ==
                             std::string_view::npos) {
        text = text.substr(0, line_start);
      }
    }
    Emit(JinjaTokenKind::kText, text);
  }

  // Behind a tag's end: `sign` is what stood before it.
  void SkipAfterTag(char sign, bool trims) {
    size_t next = pos_;
    if (sign == '-') {
      next = std::min(source_.find_first_not_of(kSpaces, pos_), source_.size());
    } else if (sign != '+' && trims && pos_ < source_.size() &&
               source_[pos_] == '\n') {
      ++next;
    }
    line_starting_ = next > pos_ && source_[next - 1] == '\n';
    MoveTo(next);
  }

  absl::Status SkipComment() {
    const size_t end = source_.find("#}", pos_);
    if (end == std::string_view::npos) {
      return JinjaError(line_, "a comment has no end");
    }
    const char sign = end > pos_ ? source_[end - 1] : '\0';
    MoveTo(end + 2);
    SkipAfterTag(sign, true);
    return absl::OkStatus();
  }

  absl::Status LexTag(bool block) {
    Emit(block ? JinjaTokenKind::kBlockBegin : JinjaTokenKind::kOutputBegin,
         {});
    const std::string_view end = block ? "%}" : "}}";
    int open_brackets = 0;  // "}}" may close two dictionaries
    while (pos_ < source_.size()) {
      const char c = source_[pos_];
      if (IsSpace(c)) {
        MoveTo(pos_ + 1);
        continue;
      }
      const std::string_view rest = source_.substr(pos_);
      const bool sign = c == '-' || (block && c == '+');
      if (open_brackets == 0 && rest.substr(sign ? 1 : 0).starts_with(end)) {
        Emit(block ? JinjaTokenKind::kBlockEnd : JinjaTokenKind::kOutputEnd,
             {});
        MoveTo(pos_ + (sign ? 3 : 2));
        SkipAfterTag(sign ? c : '\0', block);
        return absl::OkStatus();
      }
      KF_RETURN_IF_ERROR(LexToken(rest, open_brackets));
    }
    return JinjaError(line_, "a tag has no end");
  }

  absl::Status LexToken(std::string_view rest, int& open_brackets) {
    const char c = rest[0];
    if (c == '\'' || c == '"') return LexString(c);
    if (IsNameStart(c) || IsDigit(c)) {
      const bool name = IsNameStart(c);
      size_t length = 1;
      while (length < rest.size() &&
             (IsNameStart(rest[length]) || IsDigit(rest[length]))) {
        ++length;
      }
      const std::string_view text = rest.substr(0, length);
      if (!name && (!std::ranges::all_of(text, IsDigit) || length > 18 ||
                    (length + 1 < rest.size() && rest[length] == '.' &&
                     IsDigit(rest[length + 1])))) {
        return JinjaError(line_,
                          "a number that is no small decimal integer "
                          "is not supported");
      }
      Emit(name ? JinjaTokenKind::kName : JinjaTokenKind::kInteger, text);
      MoveTo(pos_ + length);
      return absl::OkStatus();
    }
    for (const std::string_view op :
         {"==", "!=", "<=", ">=", "//", "**", "+", "-", "*", "/", "%", "~", "<",
          ">",  "=",  "(",  ")",  "[",  "]",  "{", "}", ".", ",", ":", "|"}) {
      if (!rest.starts_with(op)) continue;
      if (op == "(" || op == "[" || op == "{") ++open_brackets;
      if (op == ")" || op == "]" || op == "}") --open_brackets;
      if (open_brackets < 0) return JinjaError(line_, "unbalanced brackets");
      Emit(JinjaTokenKind::kOperator, op);
      MoveTo(pos_ + op.size());
      return absl::OkStatus();
    }
    return JinjaError(line_, absl::StrCat("unexpected byte 0x",
                                          absl::Hex(static_cast<uint8_t>(c))));
  }

  absl::Status LexString(char quote) {
    std::string value;
    size_t at = pos_ + 1;
    while (at < source_.size() && source_[at] != quote) {
      if (source_[at] != '\\') {
        value.push_back(source_[at++]);
      } else if (++at < source_.size()) {
        KF_RETURN_IF_ERROR(LexEscape(at, value));
      }
    }
    if (at >= source_.size()) return JinjaError(line_, "a string has no end");
    Emit(JinjaTokenKind::kString, value);
    MoveTo(at + 1);
    return absl::OkStatus();
  }

  // `at` is behind the backslash; moves it behind the escape.
  absl::Status LexEscape(size_t& at, std::string& value) {
    static constexpr std::string_view kCodes = "ntrbfva\\'\"";
    static constexpr std::string_view kValues = "\n\t\r\b\f\v\a\\'\"";
    const char c = source_[at++];
    if (const size_t i = kCodes.find(c); i != std::string_view::npos) {
      value.push_back(kValues[i]);
    } else if (c == 'x' || c == 'u' || c == 'U') {
      return LexCodePoint(c == 'x' ? 2 : (c == 'u' ? 4 : 8), at, value);
    } else if (IsDigit(c) || c == 'N') {
      return JinjaError(line_, "octal and named escapes are not supported");
    } else if (c != '\n') {  // an escaped line end vanishes
      value.push_back('\\');
      value.push_back(c);
    }
    return absl::OkStatus();
  }

  absl::Status LexCodePoint(size_t digits, size_t& at, std::string& value) {
    char32_t code = 0;
    for (size_t i = 0; i < digits; ++i, ++at) {
      const char c = at < source_.size() ? source_[at] : '\0';
      const bool letter = (c >= 'a' && c <= 'f') || (c >= 'A' && c <= 'F');
      if (!IsDigit(c) && !letter) {
        return JinjaError(line_, "a code point escape needs more digits");
      }
      const char32_t digit =
          static_cast<char32_t>(IsDigit(c) ? c - '0' : (c | 0x20) - 'a' + 10);
      code = (code << 4) | digit;
    }
    if (code > 0x10FFFF || (code >= 0xD800 && code <= 0xDFFF)) {
      return JinjaError(line_, "an escape names no Unicode character");
    }
    AppendUtf8(code, value);
    return absl::OkStatus();
  }

  std::string_view source_;
  size_t pos_ = 0;
  int line_ = 1;
  bool line_starting_ = true;  // text from pos_ on starts a line
  std::vector<JinjaToken> tokens_;
};

}  // namespace

absl::Status JinjaError(int line, std::string_view what) {
  return absl::FailedPreconditionError(
      absl::StrCat("chat template line ", line, ": ", ToAbsl(what)));
}

absl::StatusOr<std::vector<JinjaToken>> LexJinja(std::string_view source) {
  return Lexer(source).Run();
}

}  // namespace kf::engine
