// Parses the Jinja statements that chat templates use: if/elif/else, for/else,
// set, output. Names of filters, tests and functions are not judged here: a
// template may hold branches we could not run and never take them.
#pragma once

#include <string_view>

#include "absl/status/statusor.h"
#include "engine/tokenizer/jinja_ast.h"

namespace kf::engine {

// Bounds the recursion of parser and interpreter.
inline constexpr int kMaxJinjaNesting = 64;
inline constexpr int kMaxJinjaExprDepth = 256;

// kFailedPrecondition gives the line and the construct that is not supported.
// `source` is UTF-8 with \n line ends.
absl::StatusOr<JinjaBody> ParseJinja(std::string_view source);

}  // namespace kf::engine
