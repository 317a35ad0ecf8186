// Bounds-checked reader of GGUF files (versions 2 and 3, little endian). The
// file is hostile: every count, offset and length is checked before it is used.
//
// Source: the GGUF specification (ggml, docs/gguf.md).
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/backend.h"

namespace kf::engine {

struct GgufTensor {
  std::string name;
  DType type = DType::kF32;
  std::vector<int64_t> dims;  // GGML order: dims[0] varies fastest; 1 to 4, > 0
  uint64_t bytes = 0;
  const std::byte* data = nullptr;  // in the mapping

  int64_t elements() const;
  // dims[0] columns, the product of the others rows.
  WeightView view() const;
};

// Immutable after opening, thread-safe. Owns the mapping: views and
// string_views are valid as long as it lives. The mapping shows the file as it
// is: if another process truncates it in place, reading the lost part ends this
// process (SIGBUS). Replace a model file by renaming a new one over it.
class GgufFile {
 public:
  // kNotFound / kPermissionDenied for the file itself; kInvalidArgument says
  // what is wrong and at which byte, e.g. "tensor blk.0.attn_q.weight: type 19
  // (IQ1_S) is not supported". A tensor of an unsupported type is an error only
  // when it is asked for (tokenizers load from any file).
  static absl::StatusOr<std::unique_ptr<GgufFile>> Open(
      const std::string& path);
  // The same over memory that outlives the object (tests, fuzzing).
  static absl::StatusOr<std::unique_ptr<GgufFile>> Parse(
      std::span<const std::byte> bytes);
  ~GgufFile();
  GgufFile(const GgufFile&) = delete;
  GgufFile& operator=(const GgufFile&) = delete;

  bool Has(std::string_view key) const;
  // Absent or of another type: kInvalidArgument naming the key, both types, or
  // the value that does not fit. Integers of any width convert when in range.
  absl::StatusOr<uint64_t> GetUint(std::string_view key) const;
  absl::StatusOr<int64_t> GetInt(std::string_view key) const;
  absl::StatusOr<double> GetFloat(std::string_view key) const;
  absl::StatusOr<bool> GetBool(std::string_view key) const;
  absl::StatusOr<std::string_view> GetString(std::string_view key) const;
  // Arrays; elements are views into the file.
  absl::StatusOr<std::vector<std::string_view>> GetStrings(
      std::string_view key) const;
  absl::StatusOr<std::vector<float>> GetFloats(std::string_view key) const;
  absl::StatusOr<std::vector<int64_t>> GetInts(std::string_view key) const;

  // kNotFound names the tensor; kInvalidArgument an unsupported type.
  absl::StatusOr<const GgufTensor*> Tensor(std::string_view name) const;
  bool HasTensor(std::string_view name) const;
  size_t tensor_count() const;
  // In file order. Of a tensor of an unsupported type, `type` is the file's
  // number and `data` is null.
  std::span<const GgufTensor> tensors() const;
  uint64_t file_bytes() const;

 private:
  GgufFile();
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace kf::engine
