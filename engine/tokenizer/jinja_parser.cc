#include "engine/tokenizer/jinja_parser.h"

#include <algorithm>
#include <initializer_list>
#include <utility>

#include "engine/tokenizer/jinja_expression_parser.h"
#include "engine/tokenizer/jinja_token_stream.h"
#include "kernels/core/status.h"

namespace kf::engine {
namespace {

class Parser {
 public:
  explicit Parser(std::vector<JinjaToken> tokens)
      : tokens_(std::move(tokens)), expressions_(tokens_) {}

  absl::StatusOr<JinjaBody> Run() {
    KF_ASSIGN_OR_RETURN(JinjaBody body, ParseBody({}));
    if (!tokens_.At(JinjaTokenKind::kEnd)) return tokens_.Unexpected("text");
    return body;
  }

 private:
  // Statements up to a block tag named in `ends` (left as the current token's
  // neighbour: "{%" has been taken) or the template's end.
  absl::StatusOr<JinjaBody> ParseBody(
      std::initializer_list<std::string_view> ends) {
    JinjaBody body;
    while (!tokens_.At(JinjaTokenKind::kEnd)) {
      JinjaStatement statement;
      statement.line = tokens_.line();
      if (tokens_.At(JinjaTokenKind::kText)) {
        statement.text = tokens_.Take();
      } else if (tokens_.At(JinjaTokenKind::kOutputBegin)) {
        tokens_.Take();
        statement.kind = JinjaStatementKind::kOutput;
        KF_RETURN_IF_ERROR(ParseInto(statement));
        KF_RETURN_IF_ERROR(tokens_.Expect(JinjaTokenKind::kOutputEnd, "}}"));
      } else {
        KF_RETURN_IF_ERROR(tokens_.Expect(JinjaTokenKind::kBlockBegin, "{%"));
        if (tokens_.At(JinjaTokenKind::kName) &&
            std::ranges::find(ends, tokens_.current().text) != ends.end()) {
          return body;
        }
        KF_RETURN_IF_ERROR(ParseBlock(statement));
      }
      body.push_back(std::move(statement));
    }
    if (ends.size() > 0) {
      return JinjaError(
          tokens_.line(),
          absl::StrCat("\"", ToAbsl(*(ends.end() - 1)), "\" is missing"));
    }
    return body;
  }

  absl::Status ParseInto(JinjaStatement& statement) {
    KF_ASSIGN_OR_RETURN(JinjaExprPtr expr, expressions_.Parse());
    statement.exprs.push_back(std::move(expr));
    return absl::OkStatus();
  }

  absl::Status EndTag() {
    return tokens_.Expect(JinjaTokenKind::kBlockEnd, "%}");
  }

  absl::Status ParseBlock(JinjaStatement& statement) {
    if (nesting_ >= kMaxJinjaNesting) {
      return JinjaError(tokens_.line(),
                        absl::StrCat("blocks nested deeper than ",
                                     kMaxJinjaNesting, " are not supported"));
    }
    ++nesting_;
    if (tokens_.SkipName("if")) {
      KF_RETURN_IF_ERROR(ParseIf(statement));
    } else if (tokens_.SkipName("for")) {
      KF_RETURN_IF_ERROR(ParseFor(statement));
    } else if (tokens_.SkipName("set")) {
      KF_RETURN_IF_ERROR(ParseSet(statement));
    } else {
      return JinjaError(
          tokens_.line(),
          absl::StrCat(
              "the statement \"",
              ToAbsl(std::string_view(tokens_.current().text).substr(0, 40)),
              "\" is not supported"));
    }
    --nesting_;
    return absl::OkStatus();
  }

  absl::Status ParseIf(JinjaStatement& statement) {
    statement.kind = JinjaStatementKind::kIf;
    bool more = true;
    while (more) {
      KF_RETURN_IF_ERROR(ParseInto(statement));
      KF_RETURN_IF_ERROR(EndTag());
      KF_ASSIGN_OR_RETURN(JinjaBody body, ParseBody({"elif", "else", "endif"}));
      statement.bodies.push_back(std::move(body));
      more = tokens_.SkipName("elif");
    }
    if (tokens_.SkipName("else")) {
      KF_RETURN_IF_ERROR(EndTag());
      KF_ASSIGN_OR_RETURN(JinjaBody body, ParseBody({"endif"}));
      statement.bodies.push_back(std::move(body));
    }
    if (!tokens_.SkipName("endif")) return tokens_.Unexpected("endif");
    return EndTag();
  }

  absl::Status ParseFor(JinjaStatement& statement) {
    statement.kind = JinjaStatementKind::kFor;
    do {
      if (!tokens_.At(JinjaTokenKind::kName)) {
        return tokens_.Unexpected("a loop variable");
      }
      statement.names.push_back(tokens_.Take());
    } while (tokens_.SkipOp(","));
    if (!tokens_.SkipName("in")) return tokens_.Unexpected("in");
    KF_ASSIGN_OR_RETURN(JinjaExprPtr iterable, expressions_.ParseOr());
    JinjaExprPtr filter;
    if (tokens_.SkipName("if")) {
      KF_ASSIGN_OR_RETURN(filter, expressions_.Parse());
    }
    statement.exprs.push_back(std::move(iterable));
    statement.exprs.push_back(std::move(filter));
    if (tokens_.AtName("recursive")) {
      return JinjaError(tokens_.line(), "a recursive loop is not supported");
    }
    KF_RETURN_IF_ERROR(EndTag());
    KF_ASSIGN_OR_RETURN(JinjaBody body, ParseBody({"else", "endfor"}));
    JinjaBody otherwise;
    if (tokens_.SkipName("else")) {
      KF_RETURN_IF_ERROR(EndTag());
      KF_ASSIGN_OR_RETURN(otherwise, ParseBody({"endfor"}));
    }
    statement.bodies.push_back(std::move(body));
    statement.bodies.push_back(std::move(otherwise));
    if (!tokens_.SkipName("endfor")) return tokens_.Unexpected("endfor");
    return EndTag();
  }

  absl::Status ParseSet(JinjaStatement& statement) {
    statement.kind = JinjaStatementKind::kSet;
    do {
      if (!tokens_.At(JinjaTokenKind::kName)) {
        return tokens_.Unexpected("a variable");
      }
      statement.names.push_back(tokens_.Take());
    } while (statement.names.size() < 2 && tokens_.SkipOp("."));
    if (!tokens_.AtOp("=")) {
      return JinjaError(tokens_.line(),
                        "\"set\" without \"=\" is not supported");
    }
    tokens_.Take();
    KF_RETURN_IF_ERROR(ParseInto(statement));
    return EndTag();
  }

  JinjaTokenStream tokens_;
  JinjaExpressionParser expressions_;
  int nesting_ = 0;
};

}  // namespace

absl::StatusOr<JinjaBody> ParseJinja(std::string_view source) {
  KF_ASSIGN_OR_RETURN(std::vector<JinjaToken> tokens, LexJinja(source));
  return Parser(std::move(tokens)).Run();
}

}  // namespace kf::engine
