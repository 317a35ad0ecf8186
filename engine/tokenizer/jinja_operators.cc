#include "engine/tokenizer/jinja_operators.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "engine/tokenizer/utf8.h"
#include "kernels/core/status.h"

namespace kf::engine {
namespace {

using ValueOr = absl::StatusOr<JinjaValue>;

absl::Status NotSupported(const JinjaContext& context,
                          std::string_view op,
                          const JinjaValue& left,
                          const JinjaValue& right) {
  return context.Error(absl::StrCat("\"", ToAbsl(op), "\" between ",
                                    ToAbsl(left.kind()), " and ",
                                    ToAbsl(right.kind()), " is not supported"));
}

ValueOr IntegerBinary(const JinjaContext& context,
                      std::string_view op,
                      int64_t a,
                      int64_t b) {
  int64_t result = 0;
  bool overflow = false;
  if (op == "+") {
    overflow = __builtin_add_overflow(a, b, &result);
  } else if (op == "-") {
    overflow = __builtin_sub_overflow(a, b, &result);
  } else if (op == "*") {
    overflow = __builtin_mul_overflow(a, b, &result);
  } else if (op == "%" || op == "//") {
    if (b == 0) return context.Error("division by zero");
    if (b == -1) {  // the one quotient that overflows is min / -1
      overflow = __builtin_sub_overflow(int64_t{0}, a, &result);
      if (op == "%") return JinjaValue::Int(0);
    } else {
      // Python rounds down.
      const bool lower = a % b != 0 && (a % b < 0) != (b < 0);
      result = op == "%" ? a % b + (lower ? b : 0) : a / b - (lower ? 1 : 0);
    }
  } else {
    return context.Error(
        absl::StrCat("the operator \"", ToAbsl(op), "\" is not supported"));
  }
  if (overflow) return context.Error("an integer beyond 64 bits");
  return JinjaValue::Int(result);
}

absl::StatusOr<JinjaValue> Concatenate(JinjaContext& context,
                                       const JinjaString& left,
                                       const JinjaString& right) {
  KF_RETURN_IF_ERROR(context.ChargeBytes(left.size() + right.size()));
  JinjaString out = left;
  out.Append(right);
  return JinjaValue::String(std::move(out));
}

absl::StatusOr<bool> Contains(JinjaContext& context,
                              const JinjaValue& item,
                              const JinjaValue& container) {
  if (container.string() != nullptr && item.string() != nullptr) {
    KF_RETURN_IF_ERROR(context.ChargeBytes(container.string()->size()));
    return container.string()->text().find(item.string()->text()) !=
           std::string_view::npos;
  }
  if (container.list() != nullptr) {
    for (const JinjaValue& element : *container.list()) {
      KF_ASSIGN_OR_RETURN(const bool equal,
                          JinjaCompare(context, "==", item, element));
      if (equal) return true;
    }
    return false;
  }
  if (container.dict() != nullptr && item.string() != nullptr) {
    return container.dict()->contains(item.string()->text());
  }
  if (container.is_undefined()) return false;
  return NotSupported(context, "in", item, container);
}

// The byte offset of each code point, and the size.
std::vector<size_t> CodePointOffsets(std::string_view text) {
  std::vector<size_t> offsets;
  size_t pos = 0;
  while (pos < text.size()) {
    offsets.push_back(pos);
    pos += NextUtf8(text, pos).length;
  }
  offsets.push_back(pos);
  return offsets;
}

// Python's slice.indices: the selected indices, ascending or descending.
absl::StatusOr<std::vector<size_t>> SliceIndices(const JinjaContext& context,
                                                 const JinjaSliceBounds& bounds,
                                                 size_t size) {
  const auto absent = [](const JinjaValue& v) {
    return v.is_undefined() || v.is_none();
  };
  for (const JinjaValue* v : {&bounds.start, &bounds.stop, &bounds.step}) {
    if (!absent(*v) && v->integer() == nullptr) {
      return context.Error("a slice needs integers");
    }
  }
  const int64_t step = absent(bounds.step) ? 1 : *bounds.step.integer();
  if (step == 0 || step == std::numeric_limits<int64_t>::min()) {
    return context.Error("a slice step of that size is not supported");
  }
  const auto n = static_cast<int64_t>(size);
  const int64_t low = step > 0 ? 0 : -1;
  const int64_t high = step > 0 ? n : n - 1;
  const auto place = [&](const JinjaValue& bound, int64_t otherwise) {
    if (absent(bound)) return otherwise;
    const int64_t value = *bound.integer();
    return std::clamp(value < 0 ? value + n : value, low, high);
  };
  int64_t at = place(bounds.start, step > 0 ? low : high);
  const int64_t stop = place(bounds.stop, step > 0 ? high : low);
  std::vector<size_t> indices;
  while (step > 0 ? at < stop : at > stop) {
    indices.push_back(static_cast<size_t>(at));
    if (__builtin_add_overflow(at, step, &at)) break;
  }
  return indices;
}

}  // namespace

ValueOr JinjaBinary(JinjaContext& context,
                    std::string_view op,
                    const JinjaValue& left,
                    const JinjaValue& right) {
  KF_RETURN_IF_ERROR(context.Charge(1));
  if (op == "~") {
    KF_ASSIGN_OR_RETURN(const JinjaString a, JinjaText(context, left));
    KF_ASSIGN_OR_RETURN(const JinjaString b, JinjaText(context, right));
    return Concatenate(context, a, b);
  }
  if (left.AsInt().has_value() && right.AsInt().has_value()) {
    return IntegerBinary(context, op, *left.AsInt(), *right.AsInt());
  }
  if (op == "+" && left.string() != nullptr && right.string() != nullptr) {
    return Concatenate(context, *left.string(), *right.string());
  }
  if (op == "+" && left.list() != nullptr && right.list() != nullptr) {
    KF_RETURN_IF_ERROR(
        context.Charge(left.list()->size() + right.list()->size()));
    JinjaList items = *left.list();
    items.insert(items.end(), right.list()->begin(), right.list()->end());
    return JinjaValue::List(std::move(items));
  }
  return NotSupported(context, op, left, right);
}

absl::StatusOr<bool> JinjaCompare(JinjaContext& context,
                                  std::string_view op,
                                  const JinjaValue& left,
                                  const JinjaValue& right) {
  KF_RETURN_IF_ERROR(context.Charge(1));
  if (op == "==" || op == "!=") {
    if (left.string() != nullptr && right.string() != nullptr) {
      KF_RETURN_IF_ERROR(context.ChargeBytes(
          std::min(left.string()->size(), right.string()->size())));
    }
    int64_t budget = 10'000;
    const bool equal = JinjaEqual(left, right, budget);
    if (budget < 0) return context.Error("a comparison of that size");
    KF_RETURN_IF_ERROR(context.Charge(static_cast<size_t>(10'000 - budget)));
    return equal == (op == "==");
  }
  if (op == "in" || op == "not in") {
    KF_ASSIGN_OR_RETURN(const bool found, Contains(context, left, right));
    return found == (op == "in");
  }
  int order = 0;
  if (left.AsInt().has_value() && right.AsInt().has_value()) {
    order = *left.AsInt() < *right.AsInt()   ? -1
            : *left.AsInt() > *right.AsInt() ? 1
                                             : 0;
  } else if (left.string() != nullptr && right.string() != nullptr) {
    KF_RETURN_IF_ERROR(context.ChargeBytes(left.string()->size()));
    order = left.string()->text().compare(right.string()->text());
  } else {
    return NotSupported(context, op, left, right);
  }
  if (op == "<") return order < 0;
  if (op == "<=") return order <= 0;
  return op == ">" ? order > 0 : order >= 0;
}

ValueOr JinjaAttribute(JinjaContext& context,
                       const JinjaValue& object,
                       std::string_view name) {
  if (object.is_undefined()) {
    return context.Error(
        absl::StrCat("\"", object.undefined()->name, "\" is undefined"));
  }
  const JinjaDict* members = object.name_space() != nullptr
                                 ? &object.name_space()->members
                                 : object.dict();
  if (members != nullptr) {
    const auto it = members->find(name);
    if (it != members->end()) return it->second;
  }
  return JinjaValue::Undefined(name);
}

ValueOr JinjaIndex(JinjaContext& context,
                   const JinjaValue& object,
                   const JinjaValue& index) {
  KF_RETURN_IF_ERROR(context.Charge(1));
  if (index.string() != nullptr) {
    return JinjaAttribute(context, object, index.string()->text());
  }
  if (object.is_undefined()) return JinjaAttribute(context, object, "");
  const auto place = index.AsInt();
  if (!place.has_value()) {
    return context.Error(absl::StrCat("an index of kind ", ToAbsl(index.kind()),
                                      " is not supported"));
  }
  const JinjaList* list = object.list();
  const JinjaString* string = object.string();
  if (list == nullptr && string == nullptr) {
    return JinjaValue::Undefined("an element");
  }
  std::vector<size_t> offsets;
  if (string != nullptr) {
    KF_RETURN_IF_ERROR(context.Charge(string->size()));
    offsets = CodePointOffsets(string->text());
  }
  const auto size =
      static_cast<int64_t>(list != nullptr ? list->size() : offsets.size() - 1);
  const int64_t at = *place < 0 ? *place + size : *place;
  if (at < 0 || at >= size) return JinjaValue::Undefined("an element");
  const auto i = static_cast<size_t>(at);
  if (list != nullptr) return (*list)[i];
  return JinjaValue::String(string->Slice(offsets[i], offsets[i + 1]));
}

ValueOr JinjaSlice(JinjaContext& context,
                   const JinjaValue& object,
                   const JinjaSliceBounds& bounds) {
  if (object.list() != nullptr) {
    const JinjaList& list = *object.list();
    KF_RETURN_IF_ERROR(context.Charge(list.size()));
    KF_ASSIGN_OR_RETURN(const auto indices,
                        SliceIndices(context, bounds, list.size()));
    JinjaList items;
    for (const size_t i : indices) items.push_back(list[i]);
    return JinjaValue::List(std::move(items));
  }
  if (object.string() != nullptr) {
    const JinjaString& string = *object.string();
    KF_RETURN_IF_ERROR(context.Charge(string.size()));
    const std::vector<size_t> offsets = CodePointOffsets(string.text());
    KF_ASSIGN_OR_RETURN(const auto indices,
                        SliceIndices(context, bounds, offsets.size() - 1));
    JinjaString out;
    for (const size_t i : indices) {
      out.Append(string.Slice(offsets[i], offsets[i + 1]));
    }
    return JinjaValue::String(std::move(out));
  }
  return context.Error(
      absl::StrCat("a slice of ", ToAbsl(object.kind()), " is not supported"));
}

absl::StatusOr<JinjaString> JinjaText(JinjaContext& context,
                                      const JinjaValue& value) {
  if (value.string() != nullptr) {
    KF_RETURN_IF_ERROR(context.ChargeBytes(value.string()->size()));
    return *value.string();
  }
  if (value.is_undefined()) return JinjaString();
  if (value.is_none()) return JinjaString("None", true);
  if (value.boolean() != nullptr) {
    return JinjaString(*value.boolean() ? "True" : "False", true);
  }
  if (value.integer() != nullptr) {
    return JinjaString(absl::StrCat(*value.integer()), true);
  }
  return context.Error(
      absl::StrCat("printing a ", ToAbsl(value.kind()), " is not supported"));
}

absl::StatusOr<JinjaList> JinjaItems(JinjaContext& context,
                                     const JinjaValue& value) {
  JinjaList items;
  if (value.list() != nullptr) {
    KF_RETURN_IF_ERROR(context.Charge(value.list()->size()));
    return *value.list();
  }
  if (value.dict() != nullptr) {
    KF_RETURN_IF_ERROR(context.Charge(value.dict()->size()));
    for (const auto& [key, member] : *value.dict()) {
      items.push_back(JinjaValue::String(key, true));
    }
    return items;
  }
  if (value.string() != nullptr) {
    const JinjaString& string = *value.string();
    KF_RETURN_IF_ERROR(context.Charge(string.size()));
    const std::vector<size_t> offsets = CodePointOffsets(string.text());
    for (size_t i = 0; i + 1 < offsets.size(); ++i) {
      items.push_back(
          JinjaValue::String(string.Slice(offsets[i], offsets[i + 1])));
    }
    return items;
  }
  if (value.is_undefined()) return items;
  return context.Error(
      absl::StrCat("a loop over ", ToAbsl(value.kind()), " is not supported"));
}

}  // namespace kf::engine
