// The values a chat template computes with.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/tokenizer/jinja_string.h"

namespace kf::engine {

class JinjaValue;
using JinjaList = std::vector<JinjaValue>;
using JinjaDict = std::map<std::string, JinjaValue, std::less<>>;

struct JinjaUndefined {
  std::string name;  // what was not there, for messages
};
struct JinjaNone {};
// jinja's namespace(): the one mutable object. It is never stored in a
// container, so no cycle of owners can arise.
struct JinjaNamespace {
  JinjaDict members;
};

// A cheap copy: strings and containers are shared and immutable.
class JinjaValue {
 public:
  // Containers within containers; also keeps destruction from recursing deep.
  static constexpr int kMaxDepth = 16;

  JinjaValue() : value_(JinjaUndefined{}) {}
  static JinjaValue Undefined(std::string_view name);
  static JinjaValue None();
  static JinjaValue Bool(bool value);
  static JinjaValue Int(int64_t value);
  static JinjaValue String(JinjaString value);
  static JinjaValue String(std::string_view text, bool trusted);
  // kResourceExhausted beyond kMaxDepth or around a namespace.
  static absl::StatusOr<JinjaValue> List(JinjaList items);
  static absl::StatusOr<JinjaValue> Dict(JinjaDict members);
  static absl::StatusOr<JinjaValue> Namespace(JinjaDict members);

  bool is_undefined() const { return Is<JinjaUndefined>(); }
  bool is_none() const { return Is<JinjaNone>(); }
  // Null unless the value is of the kind.
  const JinjaUndefined* undefined() const;
  const bool* boolean() const;
  const int64_t* integer() const;
  const JinjaString* string() const;
  const JinjaList* list() const;
  const JinjaDict* dict() const;
  JinjaNamespace* name_space() const;

  // "string", "list" ...: Python's names where there is one.
  std::string_view kind() const;
  int depth() const { return depth_; }
  bool Truthy() const;
  // An integer, or a Boolean as 0 or 1, as in Python; else nothing.
  std::optional<int64_t> AsInt() const;

 private:
  template <typename T>
  bool Is() const {
    return std::holds_alternative<T>(value_);
  }

  std::variant<JinjaUndefined,
               JinjaNone,
               bool,
               int64_t,
               std::shared_ptr<const JinjaString>,
               std::shared_ptr<const JinjaList>,
               std::shared_ptr<const JinjaDict>,
               std::shared_ptr<JinjaNamespace>>
      value_;
  int depth_ = 0;
};

// Python's ==. Counts each comparison of elements down from `budget`; false
// once it is spent (the caller then fails).
bool JinjaEqual(const JinjaValue& a, const JinjaValue& b, int64_t& budget);

}  // namespace kf::engine
