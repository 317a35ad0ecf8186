#include "engine/tokenizer/jinja_value.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "kernels/core/status.h"

namespace kf::engine {
namespace {

absl::Status CheckDepth(int depth) {
  if (depth <= JinjaValue::kMaxDepth) return absl::OkStatus();
  return absl::ResourceExhaustedError(
      absl::StrCat("containers nested more than ", JinjaValue::kMaxDepth,
                   " deep, or a namespace within one"));
}

int DepthOf(const JinjaDict& members) {
  int depth = 0;
  for (const auto& [name, value] : members) {
    depth = std::max(depth, value.depth());
  }
  return depth + 1;
}

}  // namespace

JinjaValue JinjaValue::Undefined(std::string_view name) {
  JinjaValue result;
  result.value_ = JinjaUndefined{std::string(name)};
  return result;
}

JinjaValue JinjaValue::None() {
  JinjaValue result;
  result.value_ = JinjaNone{};
  return result;
}

JinjaValue JinjaValue::Bool(bool value) {
  JinjaValue result;
  result.value_ = value;
  return result;
}

JinjaValue JinjaValue::Int(int64_t value) {
  JinjaValue result;
  result.value_ = value;
  return result;
}

JinjaValue JinjaValue::String(JinjaString value) {
  JinjaValue result;
  result.value_ = std::make_shared<const JinjaString>(std::move(value));
  return result;
}

JinjaValue JinjaValue::String(std::string_view text, bool trusted) {
  return String(JinjaString(text, trusted));
}

absl::StatusOr<JinjaValue> JinjaValue::List(JinjaList items) {
  JinjaValue result;
  for (const JinjaValue& item : items) {
    result.depth_ = std::max(result.depth_, item.depth());
  }
  ++result.depth_;
  KF_RETURN_IF_ERROR(CheckDepth(result.depth_));
  result.value_ = std::make_shared<const JinjaList>(std::move(items));
  return result;
}

absl::StatusOr<JinjaValue> JinjaValue::Dict(JinjaDict members) {
  JinjaValue result;
  result.depth_ = DepthOf(members);
  KF_RETURN_IF_ERROR(CheckDepth(result.depth_));
  result.value_ = std::make_shared<const JinjaDict>(std::move(members));
  return result;
}

absl::StatusOr<JinjaValue> JinjaValue::Namespace(JinjaDict members) {
  KF_RETURN_IF_ERROR(CheckDepth(DepthOf(members)));
  JinjaValue result;
  result.depth_ = kMaxDepth;  // fits into no container
  result.value_ =
      std::make_shared<JinjaNamespace>(JinjaNamespace{std::move(members)});
  return result;
}

const JinjaUndefined* JinjaValue::undefined() const {
  return std::get_if<JinjaUndefined>(&value_);
}
const bool* JinjaValue::boolean() const { return std::get_if<bool>(&value_); }
const int64_t* JinjaValue::integer() const {
  return std::get_if<int64_t>(&value_);
}
const JinjaString* JinjaValue::string() const {
  const auto* p = std::get_if<std::shared_ptr<const JinjaString>>(&value_);
  return p == nullptr ? nullptr : p->get();
}
const JinjaList* JinjaValue::list() const {
  const auto* p = std::get_if<std::shared_ptr<const JinjaList>>(&value_);
  return p == nullptr ? nullptr : p->get();
}
const JinjaDict* JinjaValue::dict() const {
  const auto* p = std::get_if<std::shared_ptr<const JinjaDict>>(&value_);
  return p == nullptr ? nullptr : p->get();
}
JinjaNamespace* JinjaValue::name_space() const {
  const auto* p = std::get_if<std::shared_ptr<JinjaNamespace>>(&value_);
  return p == nullptr ? nullptr : p->get();
}

std::string_view JinjaValue::kind() const {
  static constexpr std::string_view kKinds[] = {"undefined", "none",     "bool",
                                                "int",       "string",   "list",
                                                "dict",      "namespace"};
  return kKinds[value_.index()];
}

bool JinjaValue::Truthy() const {
  if (is_undefined() || is_none()) return false;
  if (boolean() != nullptr) return *boolean();
  if (integer() != nullptr) return *integer() != 0;
  if (string() != nullptr) return !string()->empty();
  if (list() != nullptr) return !list()->empty();
  if (dict() != nullptr) return !dict()->empty();
  return true;
}

std::optional<int64_t> JinjaValue::AsInt() const {
  if (integer() != nullptr) return *integer();
  if (boolean() != nullptr) return *boolean() ? 1 : 0;
  return std::nullopt;
}

bool JinjaEqual(const JinjaValue& a, const JinjaValue& b, int64_t& budget) {
  if (--budget < 0) return false;
  if (a.AsInt().has_value() && b.AsInt().has_value()) {
    return *a.AsInt() == *b.AsInt();
  }
  if (a.string() != nullptr && b.string() != nullptr) {
    return a.string()->text() == b.string()->text();
  }
  if (a.list() != nullptr && b.list() != nullptr) {
    return std::ranges::equal(
        *a.list(), *b.list(),
        [&budget](const JinjaValue& x, const JinjaValue& y) {
          return JinjaEqual(x, y, budget);
        });
  }
  if (a.dict() != nullptr && b.dict() != nullptr) {
    return std::ranges::equal(
        *a.dict(), *b.dict(), [&budget](const auto& x, const auto& y) {
          return x.first == y.first && JinjaEqual(x.second, y.second, budget);
        });
  }
  if (a.name_space() != nullptr) return a.name_space() == b.name_space();
  return (a.is_none() && b.is_none()) || (a.is_undefined() && b.is_undefined());
}

}  // namespace kf::engine
