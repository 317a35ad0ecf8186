// Writes GGUF version 3 files: of models by shape, and for tests; by hand-made
// values and raw tensors also ones that lie.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/core/dtype.h"

namespace kf::engine {

// Builds one file in memory. Keys and tensors keep the order of the calls.
class GgufWriter {
 public:
  // Type numbers as in the file: 4 is uint32, 6 float32, 8 string.
  void AddRaw(std::string_view key, uint32_t type, std::string_view bytes);
  void AddRawArray(std::string_view key,
                   uint32_t element_type,
                   uint64_t count,
                   std::string_view bytes);

  void AddUint32(std::string_view key, uint32_t value);
  void AddInt32(std::string_view key, int32_t value);
  void AddFloat32(std::string_view key, float value);
  void AddBool(std::string_view key, bool value);
  void AddString(std::string_view key, std::string_view value);
  void AddStrings(std::string_view key, std::span<const std::string> values);
  void AddInt32s(std::string_view key, std::span<const int32_t> values);
  void AddFloat32s(std::string_view key, std::span<const float> values);

  // dims[0] varies fastest. `type` is any number; the data's offset is the
  // next multiple of the alignment.
  void AddTensor(std::string_view name,
                 std::span<const uint64_t> dims,
                 uint32_t type,
                 std::string_view bytes);
  // The same with an offset of the caller's choice, and no data.
  void AddTensorInfo(std::string_view name,
                     std::span<const uint64_t> dims,
                     uint32_t type,
                     uint64_t offset);
  void AddTensorF32(std::string_view name,
                    std::span<const uint64_t> dims,
                    std::span<const float> values);

  // Of tensor data, a power of two. Does not write general.alignment.
  void set_alignment(uint64_t alignment) { alignment_ = alignment; }
  void set_version(uint32_t version) { version_ = version; }

  // The file up to the tensor data, unpadded.
  std::string Header() const;
  std::string File() const;

 private:
  uint32_t version_ = 3;
  uint64_t alignment_ = 32;
  uint64_t keys_ = 0;
  uint64_t tensors_ = 0;
  std::string key_bytes_;
  std::string tensor_bytes_;
  std::string data_;
};

// The bytes of a value as the file holds them.
template <typename T>
std::string RawBytes(T value) {
  return std::string(reinterpret_cast<const char*>(&value), sizeof(T));
}

// A length and the text.
std::string RawString(std::string_view text);

}  // namespace kf::engine
