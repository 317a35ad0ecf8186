// The parser's view of a template's tokens.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "engine/tokenizer/jinja_lexer.h"
#include "kernels/core/status.h"

namespace kf::engine {

// Thread-compatible. Never moves beyond the last token, which is kEnd.
class JinjaTokenStream {
 public:
  explicit JinjaTokenStream(std::vector<JinjaToken> tokens)
      : tokens_(std::move(tokens)) {}

  const JinjaToken& current() const { return tokens_[pos_]; }
  const JinjaToken& next() const {
    return tokens_[pos_ + 1 < tokens_.size() ? pos_ + 1 : pos_];
  }
  int line() const { return current().line; }

  std::string Take() {
    std::string text = current().text;
    if (pos_ + 1 < tokens_.size()) ++pos_;
    return text;
  }

  bool At(JinjaTokenKind kind) const { return current().kind == kind; }
  bool AtName(std::string_view name) const {
    return At(JinjaTokenKind::kName) && current().text == name;
  }
  bool AtOp(std::string_view op) const {
    return At(JinjaTokenKind::kOperator) && current().text == op;
  }
  bool SkipOp(std::string_view op) {
    const bool found = AtOp(op);
    if (found) Take();
    return found;
  }
  bool SkipName(std::string_view name) {
    const bool found = AtName(name);
    if (found) Take();
    return found;
  }

  absl::Status ExpectOp(std::string_view op) {
    return SkipOp(op) ? absl::OkStatus() : Unexpected(op);
  }
  absl::Status Expect(JinjaTokenKind kind, std::string_view what) {
    if (!At(kind)) return Unexpected(what);
    Take();
    return absl::OkStatus();
  }
  absl::Status Unexpected(std::string_view wanted) const {
    return JinjaError(
        line(),
        absl::StrCat("expected ", ToAbsl(wanted), ", found \"",
                     ToAbsl(std::string_view(current().text).substr(0, 40)),
                     "\""));
  }

 private:
  std::vector<JinjaToken> tokens_;
  size_t pos_ = 0;
};

}  // namespace kf::engine
