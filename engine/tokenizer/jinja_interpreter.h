// Runs a parsed chat template.
#pragma once

#include "absl/status/statusor.h"
#include "engine/tokenizer/jinja_ast.h"

namespace kf::engine {

// What the template prints. kFailedPrecondition names the line and what is not
// supported; kInvalidArgument is the template's own raise_exception;
// kResourceExhausted beyond JinjaContext::kMaxWork. Thread-safe.
absl::StatusOr<JinjaString> RunJinja(const JinjaBody& body,
                                     const JinjaDict& globals);

}  // namespace kf::engine
