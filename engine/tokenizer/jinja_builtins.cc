#include "engine/tokenizer/jinja_builtins.h"

#include <algorithm>
#include <optional>

#include "engine/tokenizer/jinja_operators.h"
#include "engine/tokenizer/utf8.h"
#include "kernels/core/status.h"

namespace kf::engine {
namespace {

using ValueOr = absl::StatusOr<JinjaValue>;

absl::Status Unknown(const JinjaContext& context,
                     std::string_view what,
                     std::string_view name) {
  return context.Error(absl::StrCat("the ", ToAbsl(what), " \"",
                                    ToAbsl(name.substr(0, 64)),
                                    "\" (or its use here) is not supported"));
}

// The i-th argument if it is there and text.
const JinjaString* TextArgument(const JinjaArguments& arguments, size_t i) {
  return i < arguments.positional.size() ? arguments.positional[i].string()
                                         : nullptr;
}

size_t CodePoints(std::string_view text) {
  return static_cast<size_t>(std::ranges::count_if(
      text, [](char c) { return (static_cast<uint8_t>(c) & 0xC0U) != 0x80U; }));
}

// str.split: `separator` null means runs of white space.
ValueOr Split(JinjaContext& context,
              const JinjaString& text,
              const JinjaString* separator,
              std::optional<int64_t> most) {
  KF_RETURN_IF_ERROR(context.ChargeBytes(text.size()));
  JinjaList parts;
  JinjaString rest = separator == nullptr ? text.Strip({}, true, true) : text;
  if (separator == nullptr && rest.empty()) return JinjaValue::List({});
  const std::string_view view = rest.text();
  size_t begin = 0;
  while (!most.has_value() || static_cast<int64_t>(parts.size()) < *most) {
    // ASCII white space alone: what templates split on.
    const size_t found = separator == nullptr
                             ? view.find_first_of(" \t\n\r\v\f", begin)
                             : view.find(separator->text(), begin);
    if (found == std::string_view::npos) break;
    KF_RETURN_IF_ERROR(context.Charge(1));
    parts.push_back(JinjaValue::String(rest.Slice(begin, found)));
    begin = separator == nullptr ? view.find_first_not_of(" \t\n\r\v\f", found)
                                 : found + separator->size();
  }
  parts.push_back(JinjaValue::String(rest.Slice(begin, rest.size())));
  return JinjaValue::List(std::move(parts));
}

ValueOr Join(JinjaContext& context,
             const JinjaValue& items,
             const JinjaString& separator) {
  KF_ASSIGN_OR_RETURN(const JinjaList parts, JinjaItems(context, items));
  JinjaString out;
  for (size_t i = 0; i < parts.size(); ++i) {
    KF_ASSIGN_OR_RETURN(const JinjaString part, JinjaText(context, parts[i]));
    KF_RETURN_IF_ERROR(context.ChargeBytes(separator.size()));
    if (i > 0) out.Append(separator);
    out.Append(part);
  }
  return JinjaValue::String(std::move(out));
}

ValueOr Replace(JinjaContext& context,
                const JinjaString& text,
                const JinjaString* from,
                const JinjaString* to) {
  if (from == nullptr || to == nullptr || from->empty()) {
    return Unknown(context, "use of", "replace");
  }
  // At most every byte is replaced.
  KF_RETURN_IF_ERROR(context.ChargeBytes(
      text.size() + text.size() / from->size() * (to->size() + 64)));
  return JinjaValue::String(text.Replace(from->text(), *to));
}

ValueOr StringMethod(JinjaContext& context,
                     const JinjaString& text,
                     std::string_view name,
                     const JinjaArguments& arguments) {
  KF_RETURN_IF_ERROR(context.ChargeBytes(text.size()));
  const JinjaString* first = TextArgument(arguments, 0);
  const size_t count = arguments.positional.size();
  const bool plain = arguments.keywords.empty();
  if ((name == "strip" || name == "lstrip" || name == "rstrip") && plain &&
      (count == 0 || (count == 1 && first != nullptr && !first->empty()))) {
    const std::string_view chars =
        first != nullptr ? first->text() : std::string_view();
    return JinjaValue::String(
        text.Strip(chars, name != "rstrip", name != "lstrip"));
  }
  if (name == "upper" && count == 0) return JinjaValue::String(text.Upper());
  if (name == "lower" && count == 0) return JinjaValue::String(text.Lower());
  if (name == "startswith" && count == 1 && first != nullptr) {
    return JinjaValue::Bool(text.text().starts_with(first->text()));
  }
  if (name == "endswith" && count == 1 && first != nullptr) {
    return JinjaValue::Bool(text.text().ends_with(first->text()));
  }
  if (name == "split" && plain && count <= 2 &&
      (count == 0 || (first != nullptr && !first->empty()) ||
       arguments.positional[0].is_none())) {
    std::optional<int64_t> most;
    if (count == 2) {
      most = arguments.positional[1].AsInt();
      if (!most.has_value()) return Unknown(context, "method", name);
      if (*most < 0) most.reset();
    }
    return Split(context, text, first, most);
  }
  if (name == "replace" && plain && count == 2) {
    return Replace(context, text, first, TextArgument(arguments, 1));
  }
  if (name == "join" && count == 1) {
    return Join(context, arguments.positional[0], text);
  }
  return Unknown(context, "string method", name);
}

ValueOr DictMethod(JinjaContext& context,
                   const JinjaDict& dict,
                   std::string_view name,
                   const JinjaArguments& arguments) {
  KF_RETURN_IF_ERROR(context.Charge(dict.size()));
  const auto& args = arguments.positional;
  if (name == "get" && (args.size() == 1 || args.size() == 2) &&
      args[0].string() != nullptr) {
    const auto it = dict.find(args[0].string()->text());
    if (it != dict.end()) return it->second;
    return args.size() == 2 ? args[1] : JinjaValue::None();
  }
  const bool keys = name == "keys";
  if (!args.empty() || (!keys && name != "values" && name != "items")) {
    return Unknown(context, "dictionary method", name);
  }
  JinjaList items;
  for (const auto& [key, value] : dict) {
    JinjaValue item = keys ? JinjaValue::String(key, true) : value;
    if (name == "items") {
      KF_ASSIGN_OR_RETURN(
          item, JinjaValue::List({JinjaValue::String(key, true), value}));
    }
    items.push_back(std::move(item));
  }
  return JinjaValue::List(std::move(items));
}

ValueOr Length(JinjaContext& context, const JinjaValue& input) {
  size_t length = 0;
  if (input.string() != nullptr) {
    KF_RETURN_IF_ERROR(context.ChargeBytes(input.string()->size()));
    length = CodePoints(input.string()->text());
  } else if (input.list() != nullptr) {
    length = input.list()->size();
  } else if (input.dict() != nullptr) {
    length = input.dict()->size();
  } else if (!input.is_undefined()) {
    return Unknown(context, "filter", "length");
  }
  return JinjaValue::Int(static_cast<int64_t>(length));
}

ValueOr Default(JinjaContext& context,
                const JinjaValue& input,
                const JinjaArguments& arguments) {
  const auto& args = arguments.positional;
  bool also_false = args.size() > 1 && args[1].Truthy();
  for (const auto& [name, value] : arguments.keywords) {
    if (name != "boolean") return Unknown(context, "argument", name);
    also_false = value.Truthy();
  }
  if (!input.is_undefined() && (!also_false || input.Truthy())) return input;
  return args.empty() ? JinjaValue::String(JinjaString()) : args[0];
}

ValueOr Range(JinjaContext& context, const JinjaArguments& arguments) {
  std::vector<int64_t> bounds;
  for (const JinjaValue& value : arguments.positional) {
    if (value.integer() == nullptr) return Unknown(context, "use of", "range");
    bounds.push_back(*value.integer());
  }
  if (bounds.size() == 1) bounds.insert(bounds.begin(), 0);
  if (bounds.size() == 2) bounds.push_back(1);
  if (bounds.size() != 3 || bounds[2] == 0) {
    return Unknown(context, "use of", "range");
  }
  JinjaList items;
  int64_t at = bounds[0];
  while (bounds[2] > 0 ? at < bounds[1] : at > bounds[1]) {
    KF_RETURN_IF_ERROR(context.Charge(1));
    items.push_back(JinjaValue::Int(at));
    if (__builtin_add_overflow(at, bounds[2], &at)) break;
  }
  return JinjaValue::List(std::move(items));
}

}  // namespace

ValueOr ApplyJinjaFilter(JinjaContext& context,
                         std::string_view name,
                         const JinjaValue& input,
                         const JinjaArguments& arguments) {
  KF_RETURN_IF_ERROR(context.Charge(1));
  if (name == "default" || name == "d") {
    return Default(context, input, arguments);
  }
  if (name == "length" || name == "count") return Length(context, input);
  if (name == "trim" || name == "upper" || name == "lower" ||
      name == "replace") {
    KF_ASSIGN_OR_RETURN(const JinjaString text, JinjaText(context, input));
    return StringMethod(context, text, name == "trim" ? "strip" : name,
                        arguments);
  }
  if (name == "string") {
    KF_ASSIGN_OR_RETURN(JinjaString text, JinjaText(context, input));
    return JinjaValue::String(std::move(text));
  }
  if (name == "join" && arguments.positional.size() <= 1) {
    const JinjaString* separator = TextArgument(arguments, 0);
    if (separator == nullptr && !arguments.positional.empty()) {
      return Unknown(context, "filter", name);
    }
    return Join(context, input,
                separator == nullptr ? JinjaString() : *separator);
  }
  if (name == "list") {
    KF_ASSIGN_OR_RETURN(JinjaList items, JinjaItems(context, input));
    return JinjaValue::List(std::move(items));
  }
  if (name == "first" || name == "last") {
    return JinjaIndex(context, input,
                      JinjaValue::Int(name == "first" ? 0 : -1));
  }
  return Unknown(context, "filter", name);
}

absl::StatusOr<bool> ApplyJinjaTest(JinjaContext& context,
                                    std::string_view name,
                                    const JinjaValue& input,
                                    const JinjaArguments& arguments) {
  KF_RETURN_IF_ERROR(context.Charge(1));
  const int64_t* integer = input.integer();
  const auto& args = arguments.positional;
  if (args.empty()) {
    if (name == "defined") return !input.is_undefined();
    if (name == "undefined") return input.is_undefined();
    if (name == "none") return input.is_none();
    if (name == "string") return input.string() != nullptr;
    if (name == "mapping") return input.dict() != nullptr;
    if (name == "sequence" || name == "iterable") {
      return input.string() != nullptr || input.list() != nullptr ||
             input.dict() != nullptr || input.is_undefined();
    }
    if (name == "number") return input.AsInt().has_value();
    if (name == "integer") return integer != nullptr;
    if (name == "boolean") return input.boolean() != nullptr;
    if (name == "true" || name == "false") {
      return input.boolean() != nullptr && *input.boolean() == (name == "true");
    }
    if (integer != nullptr && name == "odd") return *integer % 2 != 0;
    if (integer != nullptr && name == "even") return *integer % 2 == 0;
  }
  if (args.size() == 1) {
    if (name == "eq" || name == "equalto") {
      return JinjaCompare(context, "==", input, args[0]);
    }
    if (name == "ne") return JinjaCompare(context, "!=", input, args[0]);
    if (name == "in") return JinjaCompare(context, "in", input, args[0]);
    if (name == "divisibleby" && integer != nullptr) {
      KF_ASSIGN_OR_RETURN(const JinjaValue rest,
                          JinjaBinary(context, "%", input, args[0]));
      return !rest.Truthy();
    }
  }
  return Unknown(context, "test", name);
}

bool IsJinjaFunction(std::string_view name) {
  return name == "raise_exception" || name == "namespace" || name == "range";
}

ValueOr CallJinjaFunction(JinjaContext& context,
                          std::string_view name,
                          const JinjaArguments& arguments) {
  KF_RETURN_IF_ERROR(context.Charge(1));
  if (name == "raise_exception") {
    const JinjaString* message = TextArgument(arguments, 0);
    std::string text(message != nullptr ? message->text() : "no reason given");
    text.resize(ValidUtf8Prefix(std::string_view(text).substr(0, 512)));
    return absl::InvalidArgumentError(
        absl::StrCat("messages: the chat template refuses them: ", text));
  }
  if (name == "namespace" && arguments.positional.empty()) {
    JinjaDict members;
    for (const auto& [key, value] : arguments.keywords) {
      members.insert_or_assign(key, value);
    }
    return JinjaValue::Namespace(std::move(members));
  }
  if (name == "range") return Range(context, arguments);
  return Unknown(context, "function", name);
}

ValueOr CallJinjaMethod(JinjaContext& context,
                        const JinjaValue& object,
                        std::string_view name,
                        const JinjaArguments& arguments) {
  if (object.string() != nullptr) {
    return StringMethod(context, *object.string(), name, arguments);
  }
  if (object.dict() != nullptr) {
    return DictMethod(context, *object.dict(), name, arguments);
  }
  if (object.is_undefined()) return JinjaAttribute(context, object, name);
  return Unknown(context, "method", name);
}

}  // namespace kf::engine
