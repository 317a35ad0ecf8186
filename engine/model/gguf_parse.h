// The header of a GGUF file as places in its bytes: what gguf.cc looks values
// up in. Nothing is copied, so a lying count costs no memory.
//
// Source: the GGUF specification (ggml, docs/gguf.md).
#pragma once

#include <bit>
#include <cstdint>
#include <cstring>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/model/gguf.h"

namespace kf::engine {

// Limits of what we accept; real files stay well below.
inline constexpr uint64_t kMaxGgufKeys = 65536;
inline constexpr uint64_t kMaxGgufTensors = 65536;
inline constexpr uint64_t kMaxGgufKeyBytes = 65535;      // the specification's
inline constexpr uint64_t kMaxGgufTensorNameBytes = 64;  // the specification's
inline constexpr uint64_t kMaxGgufAlignment = 65536;
inline constexpr uint64_t kDefaultGgufAlignment = 32;

enum class GgufType : uint32_t {
  kUint8 = 0,
  kInt8 = 1,
  kUint16 = 2,
  kInt16 = 3,
  kUint32 = 4,
  kInt32 = 5,
  kFloat32 = 6,
  kBool = 7,
  kString = 8,
  kArray = 9,
  kUint64 = 10,
  kInt64 = 11,
  kFloat64 = 12,
};

// "uint32"; "type 17" for a number that is no type.
std::string GgufTypeName(GgufType type);

// Bytes of one value; 0 for strings, arrays and unknown numbers.
size_t GgufTypeBytes(GgufType type);

// A metadata value: `count` elements of `type` that start at `data`. A scalar
// has count 1. A string element is a uint64 length and its bytes; all of them
// are known to lie inside the file.
struct GgufValue {
  GgufType type = GgufType::kUint8;
  bool is_array = false;
  uint64_t count = 0;
  const std::byte* data = nullptr;
};

struct GgufHeader {
  std::map<std::string_view, GgufValue> values;
  std::vector<GgufTensor> tensors;  // type may be no DType: then bytes is 0
  std::map<std::string_view, size_t> tensor_index;
};

// kInvalidArgument says what is wrong and at which byte.
absl::StatusOr<GgufHeader> ParseGgufHeader(std::span<const std::byte> file);

// Text from a file, fit for an error message: escaped and cut to 64 bytes.
std::string GgufQuote(std::string_view text);

// A tensor type's name for messages: "Q4_K", "19 (IQ1_S)", "77".
std::string GgufTensorTypeName(uint32_t type);

// One value at any address. Files and the machines we run on are little endian.
template <typename T>
T GgufLoad(const std::byte* p) {
  static_assert(std::endian::native == std::endian::little);
  T value;
  std::memcpy(&value, p, sizeof(T));
  return value;
}

}  // namespace kf::engine
