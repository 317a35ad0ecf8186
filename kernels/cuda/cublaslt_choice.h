// Which algorithms of cuBLASLt serve one shape. The promise is that a row's
// bits depend on the row alone; the library makes no such promise, so each
// algorithm is tried on the device, at load, before it is used.
#pragma once

#include <cstdint>
#include <optional>

#include "absl/status/statusor.h"
#include "kernels/cuda/cublaslt_matmul.h"
#include "kernels/cuda/device.h"

namespace kf::cuda {

// Rows up to here are a decode step's: `few` serves them, `many` more. Padded
// products have this many rows.
inline constexpr int64_t kLtFewRows = 64;
// More rows than this are several products.
inline constexpr int64_t kLtMostRows = 65536;

struct LtChoice {
  lt::Algo few = {};
  lt::Algo many = {};   // the same bits as few
  bool padded = false;  // products of kLtFewRows alone, by `few`
};

// Of what the heuristic offers for kLtFewRows, the first whose rows have the
// same bits for 1 to kLtFewRows rows, in every place tried, alone and added to
// a residual; `many` is the first of those offered for a prompt's rows that
// agrees with it, or `few` again. Where none holds: the first whose rows, in
// products of kLtFewRows, do not depend on their place. Null: neither, so
// cuBLASLt is not to be used for this shape. Waits for the device; takes, until
// it returns, memory for 260 rows of y and 130 of x (kResourceExhausted).
//
// w: [out, in], of which the results are compared.
absl::StatusOr<std::optional<LtChoice>> ChooseAlgorithms(const Device& device,
                                                         LtMatmul& matmul,
                                                         const Bf16* w);

}  // namespace kf::cuda
