// The syntax tree of a chat template.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "engine/tokenizer/jinja_value.h"

namespace kf::engine {

struct JinjaExpr;
using JinjaExprPtr = std::unique_ptr<JinjaExpr>;

enum class JinjaExprKind : uint8_t {
  kLiteral,      // value
  kName,         // name
  kList,         // children
  kDict,         // children: key, value, key, value ...
  kNot,          // children: operand
  kNegate,       // children: operand
  kAnd,          // children: left, right
  kOr,           // children: left, right
  kBinary,       // name: the operator; children: left, right
  kCompare,      // operators[i] between children[i] and children[i + 1]
  kConditional,  // children: condition, then, else (may be null)
  kAttribute,    // children: object; name
  kIndex,        // children: object, index
  kSlice,        // children: object, start, stop, step (each may be null)
  kCall,         // children: callee, arguments ...; keywords
  kFilter,       // name; children: input, arguments ...; keywords
  kTest,         // name; children: input, arguments ...
};

struct JinjaExpr {
  JinjaExprKind kind = JinjaExprKind::kLiteral;
  int line = 0;
  int depth = 1;  // of the tree below, for the recursion limit
  std::string name;
  JinjaValue value;
  std::vector<std::string> operators;
  std::vector<JinjaExprPtr> children;
  std::vector<std::pair<std::string, JinjaExprPtr>> keywords;
};

struct JinjaStatement;
using JinjaBody = std::vector<JinjaStatement>;

enum class JinjaStatementKind : uint8_t {
  kText,    // text
  kOutput,  // exprs[0]
  kIf,      // exprs[i] guards bodies[i]; one body more is the else
  kFor,     // names; exprs: iterable, filter (may be null); bodies: body, else
  kSet,     // names: variable, or namespace and attribute; exprs[0]
};

struct JinjaStatement {
  JinjaStatementKind kind = JinjaStatementKind::kText;
  int line = 0;
  std::string text;
  std::vector<std::string> names;
  std::vector<JinjaExprPtr> exprs;
  std::vector<JinjaBody> bodies;
};

}  // namespace kf::engine
