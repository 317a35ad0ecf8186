#include "engine/model/gguf_writer.h"

namespace kf::engine {
namespace {

constexpr uint32_t kUint32 = 4;
constexpr uint32_t kInt32 = 5;
constexpr uint32_t kFloat32 = 6;
constexpr uint32_t kBool = 7;
constexpr uint32_t kString = 8;
constexpr uint32_t kArray = 9;

void Pad(std::string& bytes, uint64_t alignment) {
  while (bytes.size() % alignment != 0) bytes.push_back('\0');
}

template <typename T>
std::string RawSpan(std::span<const T> values) {
  return std::string(reinterpret_cast<const char*>(values.data()),
                     values.size_bytes());
}

}  // namespace

std::string RawString(std::string_view text) {
  return RawBytes(uint64_t{text.size()}).append(text);
}

void GgufWriter::AddRaw(std::string_view key,
                        uint32_t type,
                        std::string_view bytes) {
  key_bytes_.append(RawString(key)).append(RawBytes(type)).append(bytes);
  ++keys_;
}

void GgufWriter::AddRawArray(std::string_view key,
                             uint32_t element_type,
                             uint64_t count,
                             std::string_view bytes) {
  AddRaw(key, kArray,
         RawBytes(element_type).append(RawBytes(count)).append(bytes));
}

void GgufWriter::AddUint32(std::string_view key, uint32_t value) {
  AddRaw(key, kUint32, RawBytes(value));
}

void GgufWriter::AddInt32(std::string_view key, int32_t value) {
  AddRaw(key, kInt32, RawBytes(value));
}

void GgufWriter::AddFloat32(std::string_view key, float value) {
  AddRaw(key, kFloat32, RawBytes(value));
}

void GgufWriter::AddBool(std::string_view key, bool value) {
  AddRaw(key, kBool, RawBytes(value));
}

void GgufWriter::AddString(std::string_view key, std::string_view value) {
  AddRaw(key, kString, RawString(value));
}

void GgufWriter::AddStrings(std::string_view key,
                            std::span<const std::string> values) {
  std::string bytes;
  for (const std::string& value : values) bytes += RawString(value);
  AddRawArray(key, kString, values.size(), bytes);
}

void GgufWriter::AddInt32s(std::string_view key,
                           std::span<const int32_t> values) {
  AddRawArray(key, kInt32, values.size(), RawSpan(values));
}

void GgufWriter::AddFloat32s(std::string_view key,
                             std::span<const float> values) {
  AddRawArray(key, kFloat32, values.size(), RawSpan(values));
}

void GgufWriter::AddTensor(std::string_view name,
                           std::span<const uint64_t> dims,
                           uint32_t type,
                           std::string_view bytes) {
  Pad(data_, alignment_);
  AddTensorInfo(name, dims, type, data_.size());
  data_.append(bytes);
}

void GgufWriter::AddTensorInfo(std::string_view name,
                               std::span<const uint64_t> dims,
                               uint32_t type,
                               uint64_t offset) {
  tensor_bytes_.append(RawString(name))
      .append(RawBytes(static_cast<uint32_t>(dims.size())))
      .append(RawSpan(dims))
      .append(RawBytes(type))
      .append(RawBytes(offset));
  ++tensors_;
}

void GgufWriter::AddTensorF32(std::string_view name,
                              std::span<const uint64_t> dims,
                              std::span<const float> values) {
  AddTensor(name, dims, static_cast<uint32_t>(DType::kF32), RawSpan(values));
}

std::string GgufWriter::Header() const {
  return std::string("GGUF")
      .append(RawBytes(version_))
      .append(RawBytes(tensors_))
      .append(RawBytes(keys_))
      .append(key_bytes_)
      .append(tensor_bytes_);
}

std::string GgufWriter::File() const {
  std::string file = Header();
  Pad(file, alignment_);
  file += data_;
  // The specification pads the last tensor too.
  Pad(file, alignment_);
  return file;
}

}  // namespace kf::engine
