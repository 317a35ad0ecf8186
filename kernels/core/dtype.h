// Element types: GGML tensor types a model file may hold, and the types the
// engine computes in.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace kf {

// Values are GGML's type numbers, as stored in a GGUF file. The types listed
// are the ones we read, but for kI8; any other number is a load error.
enum class DType : uint32_t {
  kF32 = 0,
  kF16 = 1,
  kQ4_0 = 2,
  kQ4_1 = 3,
  kQ5_0 = 6,
  kQ5_1 = 7,
  kQ8_0 = 8,
  kQ4_K = 12,
  kQ5_K = 13,
  kQ6_K = 14,
  kI8 = 24,  // of a cache alone: no weights are read from it
  kBF16 = 30,
};

// Elements and bytes of one block; a row of a tensor is a whole number of
// blocks. {0, 0} for a number that is not a DType.
struct BlockLayout {
  int32_t elements = 0;
  int32_t bytes = 0;
};
BlockLayout LayoutOf(DType type);

// GGML's name, "Q4_K" say; "type 17" style names are the caller's to make.
std::string_view NameOf(DType type);

// True if `value` is the number of a DType that a tensor may have: all but kI8.
bool IsKnownDType(uint32_t value);

// Writes the `count` elements that start at `src` as f32. `count` is a multiple
// of the block's elements; `src` holds count / elements * bytes bytes and needs
// no alignment. Exact: each value is what GGML's reference dequantisation
// gives.
void Dequantize(DType type, const std::byte* src, int64_t count, float* dst);

}  // namespace kf
