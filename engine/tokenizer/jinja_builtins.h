// The filters, tests, functions and methods chat templates use. Any other name
// is an error when it is reached.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/tokenizer/jinja_context.h"
#include "engine/tokenizer/jinja_value.h"

namespace kf::engine {

struct JinjaArguments {
  std::vector<JinjaValue> positional;
  std::vector<std::pair<std::string, JinjaValue>> keywords;
};

absl::StatusOr<JinjaValue> ApplyJinjaFilter(JinjaContext& context,
                                            std::string_view name,
                                            const JinjaValue& input,
                                            const JinjaArguments& arguments);
absl::StatusOr<bool> ApplyJinjaTest(JinjaContext& context,
                                    std::string_view name,
                                    const JinjaValue& input,
                                    const JinjaArguments& arguments);
// raise_exception (kInvalidArgument), namespace, range.
absl::StatusOr<JinjaValue> CallJinjaFunction(JinjaContext& context,
                                             std::string_view name,
                                             const JinjaArguments& arguments);
absl::StatusOr<JinjaValue> CallJinjaMethod(JinjaContext& context,
                                           const JinjaValue& object,
                                           std::string_view name,
                                           const JinjaArguments& arguments);
bool IsJinjaFunction(std::string_view name);

}  // namespace kf::engine
