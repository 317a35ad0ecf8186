// The work a template may do, and where it is, for errors.
#pragma once

#include <cstdint>
#include <string_view>

#include "absl/status/status.h"
#include "engine/tokenizer/jinja_lexer.h"
#include "kernels/core/status.h"

namespace kf::engine {

// One rendering. Thread-compatible.
class JinjaContext {
 public:
  // Enough for thousands of messages of hundreds of kilobytes in all (a unit
  // is one step or 64 bytes of text), and well under a second.
  static constexpr int64_t kMaxWork = 2'000'000;
  static constexpr size_t kBytesPerUnit = 64;

  void set_line(int line) { line_ = line; }
  absl::Status Error(std::string_view what) const {
    return JinjaError(line_, what);
  }

  absl::Status Charge(size_t steps) {
    left_ -= static_cast<int64_t>(steps);
    if (left_ >= 0) return absl::OkStatus();
    return absl::ResourceExhaustedError(absl::StrCat(
        "chat template line ", line_, ": more than ", kMaxWork,
        " steps (or as many times ", kBytesPerUnit, " bytes of text)"));
  }
  absl::Status ChargeBytes(size_t bytes) {
    return Charge(1 + bytes / kBytesPerUnit);
  }

 private:
  int64_t left_ = kMaxWork;
  int line_ = 0;
};

}  // namespace kf::engine
