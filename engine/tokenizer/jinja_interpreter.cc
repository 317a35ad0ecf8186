#include "engine/tokenizer/jinja_interpreter.h"

#include <string>
#include <utility>
#include <vector>

#include "engine/tokenizer/jinja_builtins.h"
#include "engine/tokenizer/jinja_context.h"
#include "engine/tokenizer/jinja_operators.h"
#include "kernels/core/status.h"

namespace kf::engine {
namespace {

using ValueOr = absl::StatusOr<JinjaValue>;

class Interpreter {
 public:
  explicit Interpreter(const JinjaDict& globals) : scopes_{globals} {}

  absl::StatusOr<JinjaString> Run(const JinjaBody& body) {
    KF_RETURN_IF_ERROR(Execute(body));
    return std::move(out_);
  }

 private:
  // The parser bounds the nesting of bodies and expressions, and so the
  // recursion here.
  absl::Status Execute(const JinjaBody& body) {
    for (const JinjaStatement& statement : body) {
      context_.set_line(statement.line);
      KF_RETURN_IF_ERROR(context_.Charge(1));
      switch (statement.kind) {
        case JinjaStatementKind::kText:
          KF_RETURN_IF_ERROR(context_.ChargeBytes(statement.text.size()));
          out_.Append(statement.text, /*trusted=*/true);
          break;
        case JinjaStatementKind::kOutput: {
          KF_ASSIGN_OR_RETURN(const JinjaValue value,
                              Evaluate(*statement.exprs[0]));
          KF_ASSIGN_OR_RETURN(const JinjaString text,
                              JinjaText(context_, value));
          out_.Append(text);
          break;
        }
        case JinjaStatementKind::kIf:
          KF_RETURN_IF_ERROR(ExecuteIf(statement));
          break;
        case JinjaStatementKind::kFor:
          KF_RETURN_IF_ERROR(ExecuteFor(statement));
          break;
        case JinjaStatementKind::kSet:
          KF_RETURN_IF_ERROR(ExecuteSet(statement));
          break;
      }
    }
    return absl::OkStatus();
  }

  absl::Status ExecuteIf(const JinjaStatement& statement) {
    for (size_t i = 0; i < statement.exprs.size(); ++i) {
      KF_ASSIGN_OR_RETURN(const JinjaValue condition,
                          Evaluate(*statement.exprs[i]));
      if (condition.Truthy()) return Execute(statement.bodies[i]);
    }
    if (statement.bodies.size() == statement.exprs.size()) {
      return absl::OkStatus();
    }
    return Execute(statement.bodies.back());
  }

  absl::Status ExecuteFor(const JinjaStatement& statement) {
    KF_ASSIGN_OR_RETURN(const JinjaValue iterable,
                        Evaluate(*statement.exprs[0]));
    KF_ASSIGN_OR_RETURN(JinjaList items, JinjaItems(context_, iterable));
    // A loop's variables live for one round, as in Jinja; `loop` counts what
    // the filter lets through.
    if (statement.exprs[1] != nullptr) {
      JinjaList chosen;
      for (JinjaValue& item : items) {
        scopes_.emplace_back();
        KF_RETURN_IF_ERROR(Bind(statement, item));
        KF_ASSIGN_OR_RETURN(const JinjaValue keep,
                            Evaluate(*statement.exprs[1]));
        scopes_.pop_back();
        if (keep.Truthy()) chosen.push_back(std::move(item));
      }
      items = std::move(chosen);
    }
    if (items.empty()) return Execute(statement.bodies[1]);
    for (size_t i = 0; i < items.size(); ++i) {
      KF_RETURN_IF_ERROR(context_.Charge(1));
      scopes_.emplace_back();
      KF_RETURN_IF_ERROR(Bind(statement, items[i]));
      KF_ASSIGN_OR_RETURN(JinjaValue loop, MakeLoop(items, i));
      scopes_.back().insert_or_assign("loop", std::move(loop));
      KF_RETURN_IF_ERROR(Execute(statement.bodies[0]));
      scopes_.pop_back();
    }
    return absl::OkStatus();
  }

  absl::Status Bind(const JinjaStatement& statement, const JinjaValue& item) {
    const std::vector<std::string>& names = statement.names;
    if (names.size() == 1) {
      scopes_.back().insert_or_assign(names[0], item);
      return absl::OkStatus();
    }
    const JinjaList* parts = item.list();
    if (parts == nullptr || parts->size() != names.size()) {
      return context_.Error("the loop's variables do not fit its items");
    }
    for (size_t i = 0; i < names.size(); ++i) {
      scopes_.back().insert_or_assign(names[i], (*parts)[i]);
    }
    return absl::OkStatus();
  }

  static ValueOr MakeLoop(const JinjaList& items, size_t i) {
    const auto at = static_cast<int64_t>(i);
    const auto size = static_cast<int64_t>(items.size());
    JinjaDict loop;
    loop.emplace("index0", JinjaValue::Int(at));
    loop.emplace("index", JinjaValue::Int(at + 1));
    loop.emplace("revindex0", JinjaValue::Int(size - at - 1));
    loop.emplace("revindex", JinjaValue::Int(size - at));
    loop.emplace("first", JinjaValue::Bool(at == 0));
    loop.emplace("last", JinjaValue::Bool(at + 1 == size));
    loop.emplace("length", JinjaValue::Int(size));
    if (i > 0) loop.emplace("previtem", items[i - 1]);
    if (i + 1 < items.size()) loop.emplace("nextitem", items[i + 1]);
    return JinjaValue::Dict(std::move(loop));
  }

  absl::Status ExecuteSet(const JinjaStatement& statement) {
    KF_ASSIGN_OR_RETURN(JinjaValue value, Evaluate(*statement.exprs[0]));
    if (statement.names.size() == 1) {
      scopes_.back().insert_or_assign(statement.names[0], std::move(value));
      return absl::OkStatus();
    }
    const JinjaValue object = Lookup(statement.names[0]);
    if (object.name_space() == nullptr) {
      return context_.Error("only a namespace's attributes can be set");
    }
    // Within a namespace another one could make a cycle; containers hold none.
    if (value.name_space() != nullptr) {
      return context_.Error("a namespace cannot hold a namespace");
    }
    object.name_space()->members.insert_or_assign(statement.names[1],
                                                  std::move(value));
    return absl::OkStatus();
  }

  JinjaValue Lookup(const std::string& name) const {
    for (auto scope = scopes_.rbegin(); scope != scopes_.rend(); ++scope) {
      const auto it = scope->find(name);
      if (it != scope->end()) return it->second;
    }
    return JinjaValue::Undefined(name);
  }

  ValueOr Evaluate(const JinjaExpr& expr) {
    KF_RETURN_IF_ERROR(context_.Charge(1));
    switch (expr.kind) {
      case JinjaExprKind::kLiteral:
        return expr.value;
      case JinjaExprKind::kName:
        return Lookup(expr.name);
      case JinjaExprKind::kList:
        return EvaluateList(expr);
      case JinjaExprKind::kDict:
        return EvaluateDict(expr);
      case JinjaExprKind::kAnd:
      case JinjaExprKind::kOr: {
        KF_ASSIGN_OR_RETURN(JinjaValue left, Evaluate(*expr.children[0]));
        if (left.Truthy() == (expr.kind == JinjaExprKind::kOr)) return left;
        return Evaluate(*expr.children[1]);
      }
      case JinjaExprKind::kConditional: {
        KF_ASSIGN_OR_RETURN(const JinjaValue condition,
                            Evaluate(*expr.children[0]));
        if (condition.Truthy()) return Evaluate(*expr.children[1]);
        if (expr.children[2] != nullptr) return Evaluate(*expr.children[2]);
        return JinjaValue::Undefined("the inline if without else");
      }
      case JinjaExprKind::kCompare:
        return EvaluateCompare(expr);
      case JinjaExprKind::kCall:
        return EvaluateCall(expr);
      default:
        return EvaluateOperation(expr);
    }
  }

  // What starts with the value of children[0].
  ValueOr EvaluateOperation(const JinjaExpr& expr) {
    KF_ASSIGN_OR_RETURN(const JinjaValue first, Evaluate(*expr.children[0]));
    switch (expr.kind) {
      case JinjaExprKind::kNot:
        return JinjaValue::Bool(!first.Truthy());
      case JinjaExprKind::kNegate:
        return JinjaBinary(context_, "-", JinjaValue::Int(0), first);
      case JinjaExprKind::kAttribute:
        return JinjaAttribute(context_, first, expr.name);
      case JinjaExprKind::kBinary: {
        KF_ASSIGN_OR_RETURN(const JinjaValue right,
                            Evaluate(*expr.children[1]));
        return JinjaBinary(context_, expr.name, first, right);
      }
      case JinjaExprKind::kIndex: {
        KF_ASSIGN_OR_RETURN(const JinjaValue index,
                            Evaluate(*expr.children[1]));
        return JinjaIndex(context_, first, index);
      }
      case JinjaExprKind::kSlice:
        return EvaluateSlice(expr, first);
      case JinjaExprKind::kFilter: {
        KF_ASSIGN_OR_RETURN(const JinjaArguments arguments,
                            EvaluateArguments(expr));
        return ApplyJinjaFilter(context_, expr.name, first, arguments);
      }
      case JinjaExprKind::kTest: {
        KF_ASSIGN_OR_RETURN(const JinjaArguments arguments,
                            EvaluateArguments(expr));
        // A test may ask whether a function exists.
        const bool function = first.is_undefined() &&
                              expr.children[0]->kind == JinjaExprKind::kName &&
                              IsJinjaFunction(expr.children[0]->name);
        KF_ASSIGN_OR_RETURN(
            const bool result,
            ApplyJinjaTest(context_, expr.name,
                           function ? JinjaValue::None() : first, arguments));
        return JinjaValue::Bool(result);
      }
      default:
        break;
    }
    KF_CHECK(false);  // Evaluate handles every other kind
  }

  ValueOr EvaluateList(const JinjaExpr& expr) {
    JinjaList items;
    for (const JinjaExprPtr& child : expr.children) {
      KF_ASSIGN_OR_RETURN(JinjaValue item, Evaluate(*child));
      items.push_back(std::move(item));
    }
    return JinjaValue::List(std::move(items));
  }

  ValueOr EvaluateDict(const JinjaExpr& expr) {
    JinjaDict members;
    for (size_t i = 0; i < expr.children.size(); i += 2) {
      KF_ASSIGN_OR_RETURN(const JinjaValue key, Evaluate(*expr.children[i]));
      KF_ASSIGN_OR_RETURN(JinjaValue value, Evaluate(*expr.children[i + 1]));
      // Keys lose their origin, so a message's text may not become one.
      if (key.string() == nullptr ||
          expr.children[i]->kind != JinjaExprKind::kLiteral) {
        return context_.Error(
            "a key that is no string literal is not "
            "supported");
      }
      members.insert_or_assign(std::string(key.string()->text()),
                               std::move(value));
    }
    return JinjaValue::Dict(std::move(members));
  }

  ValueOr EvaluateCompare(const JinjaExpr& expr) {
    KF_ASSIGN_OR_RETURN(JinjaValue left, Evaluate(*expr.children[0]));
    for (size_t i = 0; i < expr.operators.size(); ++i) {
      KF_ASSIGN_OR_RETURN(JinjaValue right, Evaluate(*expr.children[i + 1]));
      KF_ASSIGN_OR_RETURN(
          const bool holds,
          JinjaCompare(context_, expr.operators[i], left, right));
      if (!holds) return JinjaValue::Bool(false);
      left = std::move(right);
    }
    return JinjaValue::Bool(true);
  }

  ValueOr EvaluateSlice(const JinjaExpr& expr, const JinjaValue& object) {
    JinjaSliceBounds bounds;
    JinjaValue* parts[] = {&bounds.start, &bounds.stop, &bounds.step};
    for (size_t i = 0; i < 3; ++i) {
      if (expr.children[i + 1] == nullptr) continue;
      KF_ASSIGN_OR_RETURN(*parts[i], Evaluate(*expr.children[i + 1]));
    }
    return JinjaSlice(context_, object, bounds);
  }

  ValueOr EvaluateCall(const JinjaExpr& expr) {
    const JinjaExpr& callee = *expr.children[0];
    KF_ASSIGN_OR_RETURN(const JinjaArguments arguments,
                        EvaluateArguments(expr));
    if (callee.kind == JinjaExprKind::kName) {
      return CallJinjaFunction(context_, callee.name, arguments);
    }
    if (callee.kind == JinjaExprKind::kAttribute) {
      KF_ASSIGN_OR_RETURN(const JinjaValue object,
                          Evaluate(*callee.children[0]));
      return CallJinjaMethod(context_, object, callee.name, arguments);
    }
    return context_.Error("calling such an expression is not supported");
  }

  absl::StatusOr<JinjaArguments> EvaluateArguments(const JinjaExpr& expr) {
    JinjaArguments arguments;
    for (size_t i = 1; i < expr.children.size(); ++i) {
      KF_ASSIGN_OR_RETURN(JinjaValue value, Evaluate(*expr.children[i]));
      arguments.positional.push_back(std::move(value));
    }
    for (const auto& [name, child] : expr.keywords) {
      KF_ASSIGN_OR_RETURN(JinjaValue value, Evaluate(*child));
      arguments.keywords.emplace_back(name, std::move(value));
    }
    return arguments;
  }

  JinjaContext context_;
  std::vector<JinjaDict> scopes_;  // the innermost is the last
  JinjaString out_;
};

}  // namespace

absl::StatusOr<JinjaString> RunJinja(const JinjaBody& body,
                                     const JinjaDict& globals) {
  return Interpreter(globals).Run(body);
}

}  // namespace kf::engine
