// GoogleTest matchers for statuses and for kernels' outputs.
//
//   EXPECT_THAT(file.GetUint("x"), StatusIs(kInvalidArgument, "missing"));
//   EXPECT_THAT(out, NearRef(reference, 1e-5, 1e-6));
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace kf::testing {

inline const absl::Status& StatusOf(const absl::Status& status) {
  return status;
}
template <typename T>
const absl::Status& StatusOf(const absl::StatusOr<T>& result) {
  return result.status();
}

MATCHER(IsOk, negation ? "is not OK" : "is OK") {
  *result_listener << StatusOf(arg).ToString();
  return StatusOf(arg).ok();
}

// The code, and a part of the message.
MATCHER_P2(StatusIs,
           code,
           part,
           "has code " + absl::StatusCodeToString(code) + " and says \"" +
               std::string(part) + "\"") {
  const absl::Status& status = StatusOf(arg);
  *result_listener << status.ToString();
  return status.code() == code &&
         std::string(status.message()).find(std::string(part)) !=
             std::string::npos;
}

// Element by element |got - want| <= absolute + relative * |want|. NaN is
// never near anything, infinities only themselves.
MATCHER_P3(NearRef,
           want,
           relative,
           absolute,
           "is near the reference, relative " +
               ::testing::PrintToString(relative) + ", absolute " +
               ::testing::PrintToString(absolute)) {
  if (std::size(arg) != std::size(want)) {
    *result_listener << "sizes " << std::size(arg) << " and "
                     << std::size(want);
    return false;
  }
  for (size_t i = 0; i < std::size(want); ++i) {
    const double a = static_cast<double>(arg[i]);
    const double b = static_cast<double>(want[i]);
    const double limit = static_cast<double>(absolute) +
                         static_cast<double>(relative) * std::fabs(b);
    const bool near = std::isinf(b) ? a == b : std::fabs(a - b) <= limit;
    if (near) continue;
    *result_listener << "element " << i << ": " << a << ", want " << b
                     << ", apart " << std::fabs(a - b) << ", limit " << limit;
    return false;
  }
  return true;
}

}  // namespace kf::testing
