// absl::Status helpers used everywhere: early return, fatal checks, and the
// bridge between std::string_view and Debian's absl::string_view (which is a
// type of its own there).
#pragma once

#include <string_view>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace kf {

inline absl::string_view ToAbsl(std::string_view text) {
  return {text.data(), text.size()};
}
inline std::string_view ToStd(absl::string_view text) {
  return {text.data(), text.size()};
}

// Writes "file:line: what" to standard error and aborts. For our own bugs only;
// outside input is answered with a status.
[[noreturn]] void CheckFailed(const char* file, int line, const char* what);

}  // namespace kf

#define KF_CONCAT_INNER(a, b) a##b
#define KF_CONCAT(a, b) KF_CONCAT_INNER(a, b)

// Returns from the calling function if `expr` is not OK.
#define KF_RETURN_IF_ERROR(expr)                                            \
  do {                                                                      \
    if (absl::Status kf_status = (expr); !kf_status.ok()) return kf_status; \
  } while (false)

// KF_ASSIGN_OR_RETURN(auto x, MakeX()): x, or return the error.
#define KF_ASSIGN_OR_RETURN(lhs, expr) \
  KF_ASSIGN_OR_RETURN_IMPL(KF_CONCAT(kf_statusor_, __LINE__), lhs, expr)
#define KF_ASSIGN_OR_RETURN_IMPL(result, lhs, expr)    \
  auto result = (expr);                                \
  if (!result.ok()) return std::move(result).status(); \
  lhs = std::move(result).value()

#define KF_CHECK(condition)                                              \
  do {                                                                   \
    if (!(condition)) ::kf::CheckFailed(__FILE__, __LINE__, #condition); \
  } while (false)
