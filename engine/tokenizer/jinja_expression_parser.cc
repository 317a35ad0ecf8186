#include "engine/tokenizer/jinja_expression_parser.h"

#include <algorithm>
#include <charconv>
#include <utility>

#include "engine/tokenizer/jinja_parser.h"

namespace kf::engine {
namespace {

using ExprOr = absl::StatusOr<JinjaExprPtr>;

constexpr std::string_view kComparisons[] = {"==", "!=", "<", "<=", ">", ">="};

}  // namespace

JinjaExprPtr JinjaExpressionParser::New(JinjaExprKind kind,
                                        std::string name) const {
  auto expr = std::make_unique<JinjaExpr>();
  expr->kind = kind;
  expr->line = tokens_.line();
  expr->name = std::move(name);
  return expr;
}

absl::Status JinjaExpressionParser::Add(JinjaExpr& parent,
                                        JinjaExprPtr child) const {
  if (child != nullptr) {
    parent.depth = std::max(parent.depth, child->depth + 1);
  }
  parent.children.push_back(std::move(child));
  if (parent.depth > kMaxJinjaExprDepth) {
    return JinjaError(tokens_.line(),
                      absl::StrCat("an expression deeper than ",
                                   kMaxJinjaExprDepth, " is not supported"));
  }
  return absl::OkStatus();
}

ExprOr JinjaExpressionParser::Parse() {
  if (nesting_ >= kMaxJinjaNesting) {
    return JinjaError(tokens_.line(),
                      absl::StrCat("nesting deeper than ", kMaxJinjaNesting,
                                   " is not supported"));
  }
  ++nesting_;
  KF_ASSIGN_OR_RETURN(JinjaExprPtr value, ParseOr());
  if (tokens_.AtName("if")) {
    JinjaExprPtr node = New(JinjaExprKind::kConditional);
    tokens_.Take();
    KF_ASSIGN_OR_RETURN(JinjaExprPtr condition, ParseOr());
    JinjaExprPtr otherwise;
    if (tokens_.SkipName("else")) {
      KF_ASSIGN_OR_RETURN(otherwise, Parse());
    }
    KF_RETURN_IF_ERROR(Add(*node, std::move(condition)));
    KF_RETURN_IF_ERROR(Add(*node, std::move(value)));
    KF_RETURN_IF_ERROR(Add(*node, std::move(otherwise)));
    value = std::move(node);
  }
  --nesting_;
  return value;
}

ExprOr JinjaExpressionParser::ParseOr() {
  KF_ASSIGN_OR_RETURN(JinjaExprPtr left, ParseAnd());
  while (tokens_.AtName("or")) {
    JinjaExprPtr node = New(JinjaExprKind::kOr);
    tokens_.Take();
    KF_ASSIGN_OR_RETURN(JinjaExprPtr right, ParseAnd());
    KF_RETURN_IF_ERROR(Add(*node, std::move(left)));
    KF_RETURN_IF_ERROR(Add(*node, std::move(right)));
    left = std::move(node);
  }
  return left;
}

ExprOr JinjaExpressionParser::ParseAnd() {
  KF_ASSIGN_OR_RETURN(JinjaExprPtr left, ParseNot());
  while (tokens_.AtName("and")) {
    JinjaExprPtr node = New(JinjaExprKind::kAnd);
    tokens_.Take();
    KF_ASSIGN_OR_RETURN(JinjaExprPtr right, ParseNot());
    KF_RETURN_IF_ERROR(Add(*node, std::move(left)));
    KF_RETURN_IF_ERROR(Add(*node, std::move(right)));
    left = std::move(node);
  }
  return left;
}

ExprOr JinjaExpressionParser::ParseNot() {
  // A loop, not recursion: "not not not ..." has no bound of its own.
  const int line = tokens_.line();
  bool any = false;
  bool negated = false;
  while (tokens_.SkipName("not")) {
    any = true;
    negated = !negated;
  }
  KF_ASSIGN_OR_RETURN(JinjaExprPtr node, ParseCompare());
  // An even count still makes a Boolean of the value.
  for (int i = 0; any && i < (negated ? 1 : 2); ++i) {
    JinjaExprPtr inverse = New(JinjaExprKind::kNot);
    inverse->line = line;
    KF_RETURN_IF_ERROR(Add(*inverse, std::move(node)));
    node = std::move(inverse);
  }
  return node;
}

ExprOr JinjaExpressionParser::ParseCompare() {
  JinjaExprPtr node = New(JinjaExprKind::kCompare);
  KF_ASSIGN_OR_RETURN(JinjaExprPtr first, ParseSum());
  KF_RETURN_IF_ERROR(Add(*node, std::move(first)));
  while (true) {
    if (tokens_.At(JinjaTokenKind::kOperator) &&
        std::ranges::find(kComparisons, tokens_.current().text) !=
            std::end(kComparisons)) {
      node->operators.push_back(tokens_.Take());
    } else if (tokens_.SkipName("in")) {
      node->operators.emplace_back("in");
    } else if (tokens_.AtName("not") && tokens_.next().text == "in") {
      tokens_.Take();
      tokens_.Take();
      node->operators.emplace_back("not in");
    } else {
      break;
    }
    KF_ASSIGN_OR_RETURN(JinjaExprPtr right, ParseSum());
    KF_RETURN_IF_ERROR(Add(*node, std::move(right)));
  }
  if (node->operators.empty()) return std::move(node->children[0]);
  return node;
}

ExprOr JinjaExpressionParser::ParseLeft(
    Level operand, std::initializer_list<std::string_view> operators) {
  KF_ASSIGN_OR_RETURN(JinjaExprPtr left, (this->*operand)());
  while (tokens_.At(JinjaTokenKind::kOperator) &&
         std::ranges::find(operators, tokens_.current().text) !=
             operators.end()) {
    JinjaExprPtr node = New(JinjaExprKind::kBinary, tokens_.current().text);
    tokens_.Take();
    KF_ASSIGN_OR_RETURN(JinjaExprPtr right, (this->*operand)());
    KF_RETURN_IF_ERROR(Add(*node, std::move(left)));
    KF_RETURN_IF_ERROR(Add(*node, std::move(right)));
    left = std::move(node);
  }
  return left;
}

ExprOr JinjaExpressionParser::ParseSum() {
  return ParseLeft(&JinjaExpressionParser::ParseConcat, {"+", "-"});
}
ExprOr JinjaExpressionParser::ParseConcat() {
  return ParseLeft(&JinjaExpressionParser::ParseProduct, {"~"});
}
ExprOr JinjaExpressionParser::ParseProduct() {
  return ParseLeft(&JinjaExpressionParser::ParseUnary,
                   {"*", "/", "//", "%", "**"});
}

ExprOr JinjaExpressionParser::ParseUnary() {
  const int line = tokens_.line();
  int minus = 0;
  while (tokens_.AtOp("-") || tokens_.AtOp("+")) {
    if (tokens_.Take() == "-" && ++minus > 1) {
      return JinjaError(line, "a double minus is not supported");
    }
  }
  KF_ASSIGN_OR_RETURN(JinjaExprPtr node, ParsePrimary());
  KF_ASSIGN_OR_RETURN(node, ParsePostfix(std::move(node)));
  if (minus > 0) {
    JinjaExprPtr negated = New(JinjaExprKind::kNegate);
    KF_RETURN_IF_ERROR(Add(*negated, std::move(node)));
    node = std::move(negated);
  }
  return ParseFilters(std::move(node));
}

ExprOr JinjaExpressionParser::ParsePostfix(JinjaExprPtr node) {
  while (true) {
    if (tokens_.AtOp(".")) {
      tokens_.Take();
      if (!tokens_.At(JinjaTokenKind::kName)) {
        return tokens_.Unexpected("an attribute");
      }
      JinjaExprPtr attribute =
          New(JinjaExprKind::kAttribute, tokens_.current().text);
      tokens_.Take();
      KF_RETURN_IF_ERROR(Add(*attribute, std::move(node)));
      node = std::move(attribute);
    } else if (tokens_.AtOp("[")) {
      KF_ASSIGN_OR_RETURN(node, ParseSubscript(std::move(node)));
    } else if (tokens_.AtOp("(")) {
      JinjaExprPtr call = New(JinjaExprKind::kCall);
      KF_RETURN_IF_ERROR(Add(*call, std::move(node)));
      KF_RETURN_IF_ERROR(ParseArguments(*call));
      node = std::move(call);
    } else {
      return node;
    }
  }
}

ExprOr JinjaExpressionParser::ParseSubscript(JinjaExprPtr object) {
  JinjaExprPtr node = New(JinjaExprKind::kIndex);
  KF_RETURN_IF_ERROR(tokens_.ExpectOp("["));
  KF_RETURN_IF_ERROR(Add(*node, std::move(object)));
  for (int part = 0; part < 3; ++part) {
    JinjaExprPtr value;
    if (!tokens_.AtOp(":") && !tokens_.AtOp("]")) {
      KF_ASSIGN_OR_RETURN(value, Parse());
    }
    KF_RETURN_IF_ERROR(Add(*node, std::move(value)));
    if (!tokens_.SkipOp(":")) break;
    node->kind = JinjaExprKind::kSlice;
  }
  KF_RETURN_IF_ERROR(tokens_.ExpectOp("]"));
  if (node->kind == JinjaExprKind::kIndex && node->children[1] == nullptr) {
    return JinjaError(node->line, "an index is missing");
  }
  if (node->kind == JinjaExprKind::kSlice) node->children.resize(4);
  return node;
}

ExprOr JinjaExpressionParser::ParseFilters(JinjaExprPtr node) {
  while (true) {
    if (tokens_.SkipOp("|")) {
      KF_ASSIGN_OR_RETURN(node, ParseFilter(std::move(node)));
    } else if (tokens_.SkipName("is")) {
      KF_ASSIGN_OR_RETURN(node, ParseTest(std::move(node)));
    } else {
      return node;
    }
  }
}

ExprOr JinjaExpressionParser::ParseFilter(JinjaExprPtr input) {
  if (!tokens_.At(JinjaTokenKind::kName)) return tokens_.Unexpected("a filter");
  JinjaExprPtr node = New(JinjaExprKind::kFilter, tokens_.current().text);
  tokens_.Take();
  KF_RETURN_IF_ERROR(Add(*node, std::move(input)));
  if (tokens_.AtOp("(")) KF_RETURN_IF_ERROR(ParseArguments(*node));
  return node;
}

ExprOr JinjaExpressionParser::ParseTest(JinjaExprPtr input) {
  const int line = tokens_.line();
  const bool negated = tokens_.SkipName("not");
  if (!tokens_.At(JinjaTokenKind::kName)) return tokens_.Unexpected("a test");
  JinjaExprPtr node = New(JinjaExprKind::kTest, tokens_.current().text);
  tokens_.Take();
  KF_RETURN_IF_ERROR(Add(*node, std::move(input)));
  if (tokens_.AtOp("(")) {
    KF_RETURN_IF_ERROR(ParseArguments(*node));
  } else if (tokens_.At(JinjaTokenKind::kInteger) ||
             tokens_.At(JinjaTokenKind::kString)) {
    KF_ASSIGN_OR_RETURN(JinjaExprPtr argument, ParsePrimary());
    KF_RETURN_IF_ERROR(Add(*node, std::move(argument)));
  }
  if (!negated) return node;
  JinjaExprPtr inverse = New(JinjaExprKind::kNot);
  inverse->line = line;
  KF_RETURN_IF_ERROR(Add(*inverse, std::move(node)));
  return inverse;
}

absl::Status JinjaExpressionParser::ParseArguments(JinjaExpr& call) {
  KF_RETURN_IF_ERROR(tokens_.ExpectOp("("));
  while (!tokens_.SkipOp(")")) {
    if (tokens_.AtOp("*") || tokens_.AtOp("**")) {
      return JinjaError(tokens_.line(), "unpacking is not supported");
    }
    std::string keyword;
    if (tokens_.At(JinjaTokenKind::kName) && tokens_.next().text == "=" &&
        tokens_.next().kind == JinjaTokenKind::kOperator) {
      keyword = tokens_.Take();
      tokens_.Take();
    }
    KF_ASSIGN_OR_RETURN(JinjaExprPtr value, Parse());
    if (keyword.empty()) {
      KF_RETURN_IF_ERROR(Add(call, std::move(value)));
    } else {
      // Through Add, for the depth.
      KF_RETURN_IF_ERROR(Add(call, std::move(value)));
      call.keywords.emplace_back(std::move(keyword),
                                 std::move(call.children.back()));
      call.children.pop_back();
    }
    if (!tokens_.AtOp(")")) KF_RETURN_IF_ERROR(tokens_.ExpectOp(","));
  }
  return absl::OkStatus();
}

ExprOr JinjaExpressionParser::ParsePrimary() {
  const JinjaToken& token = tokens_.current();
  switch (token.kind) {
    case JinjaTokenKind::kName:
      return ParseNameOrConstant();
    case JinjaTokenKind::kInteger: {
      JinjaExprPtr node = New(JinjaExprKind::kLiteral);
      int64_t value = 0;  // the lexer bounds its digits
      std::from_chars(token.text.data(), token.text.data() + token.text.size(),
                      value);
      node->value = JinjaValue::Int(value);
      tokens_.Take();
      return node;
    }
    case JinjaTokenKind::kString: {
      JinjaExprPtr node = New(JinjaExprKind::kLiteral);
      std::string text;  // neighbouring literals are one
      while (tokens_.At(JinjaTokenKind::kString)) text += tokens_.Take();
      node->value = JinjaValue::String(text, /*trusted=*/true);
      return node;
    }
    default:
      break;
  }
  if (tokens_.SkipOp("(")) return ParseSequence(")");
  if (tokens_.SkipOp("[")) return ParseSequence("]");
  if (tokens_.SkipOp("{")) return ParseDict();
  return tokens_.Unexpected("an expression");
}

ExprOr JinjaExpressionParser::ParseNameOrConstant() {
  JinjaExprPtr node = New(JinjaExprKind::kLiteral);
  const std::string name = tokens_.Take();
  if (name == "true" || name == "True") {
    node->value = JinjaValue::Bool(true);
  } else if (name == "false" || name == "False") {
    node->value = JinjaValue::Bool(false);
  } else if (name == "none" || name == "None") {
    node->value = JinjaValue::None();
  } else {
    node->kind = JinjaExprKind::kName;
    node->name = name;
  }
  return node;
}

// Behind "(" or "[": a list, or in parentheses one expression without a comma.
ExprOr JinjaExpressionParser::ParseSequence(std::string_view close) {
  JinjaExprPtr node = New(JinjaExprKind::kList);
  bool comma = false;
  while (!tokens_.SkipOp(close)) {
    KF_ASSIGN_OR_RETURN(JinjaExprPtr item, Parse());
    KF_RETURN_IF_ERROR(Add(*node, std::move(item)));
    if (tokens_.AtOp(close)) continue;
    KF_RETURN_IF_ERROR(tokens_.ExpectOp(","));
    comma = true;
  }
  if (close == ")" && !comma && node->children.size() == 1) {
    return std::move(node->children[0]);
  }
  return node;
}

ExprOr JinjaExpressionParser::ParseDict() {
  JinjaExprPtr node = New(JinjaExprKind::kDict);
  while (!tokens_.SkipOp("}")) {
    KF_ASSIGN_OR_RETURN(JinjaExprPtr key, Parse());
    KF_RETURN_IF_ERROR(tokens_.ExpectOp(":"));
    KF_ASSIGN_OR_RETURN(JinjaExprPtr value, Parse());
    KF_RETURN_IF_ERROR(Add(*node, std::move(key)));
    KF_RETURN_IF_ERROR(Add(*node, std::move(value)));
    if (!tokens_.AtOp("}")) KF_RETURN_IF_ERROR(tokens_.ExpectOp(","));
  }
  return node;
}

}  // namespace kf::engine
