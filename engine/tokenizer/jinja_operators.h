// Jinja's operators, subscripts and conversions to text, with Python's meaning.
#pragma once

#include <string_view>

#include "absl/status/statusor.h"
#include "engine/tokenizer/jinja_context.h"
#include "engine/tokenizer/jinja_value.h"

namespace kf::engine {

// Optional bounds of a slice; undefined stands for an absent one.
struct JinjaSliceBounds {
  JinjaValue start;
  JinjaValue stop;
  JinjaValue step;
};

// + - * // % ~; an error for what is not supported on these kinds.
absl::StatusOr<JinjaValue> JinjaBinary(JinjaContext& context,
                                       std::string_view op,
                                       const JinjaValue& left,
                                       const JinjaValue& right);
// == != < <= > >= in, "not in".
absl::StatusOr<bool> JinjaCompare(JinjaContext& context,
                                  std::string_view op,
                                  const JinjaValue& left,
                                  const JinjaValue& right);
// object.name; undefined if there is none.
absl::StatusOr<JinjaValue> JinjaAttribute(JinjaContext& context,
                                          const JinjaValue& object,
                                          std::string_view name);
// object[index].
absl::StatusOr<JinjaValue> JinjaIndex(JinjaContext& context,
                                      const JinjaValue& object,
                                      const JinjaValue& index);
absl::StatusOr<JinjaValue> JinjaSlice(JinjaContext& context,
                                      const JinjaValue& object,
                                      const JinjaSliceBounds& bounds);
// What {{ value }} prints. An error for containers.
absl::StatusOr<JinjaString> JinjaText(JinjaContext& context,
                                      const JinjaValue& value);
// A list's items, a dictionary's keys, a string's code points; undefined is
// empty.
absl::StatusOr<JinjaList> JinjaItems(JinjaContext& context,
                                     const JinjaValue& value);

}  // namespace kf::engine
