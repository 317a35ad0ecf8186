// Parses one Jinja expression.
#pragma once

#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "engine/tokenizer/jinja_ast.h"
#include "engine/tokenizer/jinja_token_stream.h"

namespace kf::engine {

class JinjaExpressionParser {
 public:
  explicit JinjaExpressionParser(JinjaTokenStream& tokens) : tokens_(tokens) {}

  // "a if b else c" and everything that binds tighter.
  absl::StatusOr<JinjaExprPtr> Parse();
  // Without the conditional: a for loop's iterable, whose "if" is a filter.
  absl::StatusOr<JinjaExprPtr> ParseOr();

 private:
  using Level = absl::StatusOr<JinjaExprPtr> (JinjaExpressionParser::*)();

  absl::StatusOr<JinjaExprPtr> ParseAnd();
  absl::StatusOr<JinjaExprPtr> ParseNot();
  absl::StatusOr<JinjaExprPtr> ParseCompare();
  absl::StatusOr<JinjaExprPtr> ParseSum();
  absl::StatusOr<JinjaExprPtr> ParseConcat();
  absl::StatusOr<JinjaExprPtr> ParseProduct();
  absl::StatusOr<JinjaExprPtr> ParseUnary();
  absl::StatusOr<JinjaExprPtr> ParsePostfix(JinjaExprPtr node);
  absl::StatusOr<JinjaExprPtr> ParseFilters(JinjaExprPtr node);
  absl::StatusOr<JinjaExprPtr> ParseFilter(JinjaExprPtr input);
  absl::StatusOr<JinjaExprPtr> ParseTest(JinjaExprPtr input);
  absl::StatusOr<JinjaExprPtr> ParseSubscript(JinjaExprPtr object);
  absl::StatusOr<JinjaExprPtr> ParsePrimary();
  absl::StatusOr<JinjaExprPtr> ParseNameOrConstant();
  absl::StatusOr<JinjaExprPtr> ParseSequence(std::string_view close);
  absl::StatusOr<JinjaExprPtr> ParseDict();
  // Binary operators of one precedence, from the left.
  absl::StatusOr<JinjaExprPtr> ParseLeft(
      Level operand, std::initializer_list<std::string_view> operators);
  absl::Status ParseArguments(JinjaExpr& call);

  JinjaExprPtr New(JinjaExprKind kind, std::string name = {}) const;
  // Appends the child (which may be null) and checks the depth.
  absl::Status Add(JinjaExpr& parent, JinjaExprPtr child) const;

  JinjaTokenStream& tokens_;
  int nesting_ = 0;
};

}  // namespace kf::engine
