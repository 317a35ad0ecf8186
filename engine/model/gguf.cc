#include "engine/model/gguf.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <limits>
#include <type_traits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/model/gguf_parse.h"
#include "kernels/core/status.h"

namespace kf::engine {
namespace {

// A read-only mapping, or borrowed memory.
class Mapping {
 public:
  Mapping() = default;
  ~Mapping() {
    if (owned_) munmap(address_, bytes_.size());
  }
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;

  std::span<const std::byte> bytes() const { return bytes_; }
  void Borrow(std::span<const std::byte> bytes) { bytes_ = bytes; }

  absl::Status Map(const std::string& path) {
    const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC);
    if (fd < 0) return absl::ErrnoToStatus(errno, path);
    absl::Status mapped = MapOpened(fd, path);
    close(fd);  // the mapping stays
    return mapped;
  }

 private:
  absl::Status MapOpened(int fd, const std::string& path) {
    struct stat info = {};
    if (fstat(fd, &info) != 0) return absl::ErrnoToStatus(errno, path);
    if (!S_ISREG(info.st_mode)) {
      return absl::InvalidArgumentError(
          absl::StrCat(path, ": not a regular file"));
    }
    if (info.st_size == 0) {
      return absl::InvalidArgumentError(absl::StrCat(path, ": empty file"));
    }
    const size_t size = static_cast<size_t>(info.st_size);
    void* address = mmap(nullptr, size, PROT_READ, MAP_PRIVATE, fd, 0);
    if (address == MAP_FAILED) return absl::ErrnoToStatus(errno, path);
    address_ = address;
    owned_ = true;
    bytes_ = {static_cast<const std::byte*>(address), size};
    return absl::OkStatus();
  }

  void* address_ = nullptr;
  bool owned_ = false;
  std::span<const std::byte> bytes_;
};

absl::Status WrongType(std::string_view key,
                       const GgufValue& value,
                       std::string_view want) {
  return absl::InvalidArgumentError(
      absl::StrCat("key ", GgufQuote(key), ": type ", GgufTypeName(value.type),
                   value.is_array ? " array" : "", ", want ", ToAbsl(want)));
}

// Calls `use` with element `index` as the integer type it is stored in; false
// if it is no integer.
template <typename Use>
bool VisitInteger(const GgufValue& value, uint64_t index, Use use) {
  const std::byte* p = value.data + index * GgufTypeBytes(value.type);
  switch (value.type) {
    case GgufType::kUint8:
      use(GgufLoad<uint8_t>(p));
      return true;
    case GgufType::kInt8:
      use(GgufLoad<int8_t>(p));
      return true;
    case GgufType::kUint16:
      use(GgufLoad<uint16_t>(p));
      return true;
    case GgufType::kInt16:
      use(GgufLoad<int16_t>(p));
      return true;
    case GgufType::kUint32:
      use(GgufLoad<uint32_t>(p));
      return true;
    case GgufType::kInt32:
      use(GgufLoad<int32_t>(p));
      return true;
    case GgufType::kUint64:
      use(GgufLoad<uint64_t>(p));
      return true;
    case GgufType::kInt64:
      use(GgufLoad<int64_t>(p));
      return true;
    default:
      return false;
  }
}

template <typename T>
absl::StatusOr<T> ToInteger(std::string_view key,
                            const GgufValue& value,
                            uint64_t index) {
  absl::StatusOr<T> result = T{};
  const bool integer = VisitInteger(value, index, [&](auto stored) {
    if (std::in_range<T>(stored)) {
      result = static_cast<T>(stored);
    } else {
      result = absl::InvalidArgumentError(
          absl::StrCat("key ", GgufQuote(key), ": ", stored,
                       ", want a value in [", std::numeric_limits<T>::min(),
                       ", ", std::numeric_limits<T>::max(), "]"));
    }
  });
  if (!integer) return WrongType(key, value, "an integer");
  return result;
}

std::string_view LoadString(const std::byte*& p) {
  const uint64_t bytes = GgufLoad<uint64_t>(p);
  const std::string_view text(reinterpret_cast<const char*>(p + 8),
                              static_cast<size_t>(bytes));
  p += 8 + bytes;
  return text;
}

}  // namespace

int64_t GgufTensor::elements() const {
  int64_t product = 1;
  for (const int64_t dim : dims) product *= dim;
  return product;
}

WeightView GgufTensor::view() const {
  return {type, elements() / dims[0], dims[0], data};
}

struct GgufFile::Impl {
  Mapping mapping;
  GgufHeader header;

  // The value of `key`, known to be an array or not.
  absl::StatusOr<const GgufValue*> Find(std::string_view key,
                                        bool want_array) const {
    const auto found = header.values.find(key);
    if (found == header.values.end()) {
      return absl::InvalidArgumentError(
          absl::StrCat("key ", GgufQuote(key), " is missing"));
    }
    if (found->second.is_array != want_array) {
      return WrongType(key, found->second,
                       want_array ? "an array" : "a single value");
    }
    return &found->second;
  }

  template <typename T>
  absl::StatusOr<T> Integer(std::string_view key) const {
    KF_ASSIGN_OR_RETURN(const GgufValue* value, Find(key, false));
    return ToInteger<T>(key, *value, 0);
  }
};

GgufFile::GgufFile() : impl_(std::make_unique<Impl>()) {}
GgufFile::~GgufFile() = default;

absl::StatusOr<std::unique_ptr<GgufFile>> GgufFile::Open(
    const std::string& path) {
  std::unique_ptr<GgufFile> file(new GgufFile());
  KF_RETURN_IF_ERROR(file->impl_->mapping.Map(path));
  absl::StatusOr<GgufHeader> header =
      ParseGgufHeader(file->impl_->mapping.bytes());
  if (!header.ok()) {
    return absl::Status(header.status().code(),
                        absl::StrCat(path, ": ", header.status().message()));
  }
  file->impl_->header = *std::move(header);
  return file;
}

absl::StatusOr<std::unique_ptr<GgufFile>> GgufFile::Parse(
    std::span<const std::byte> bytes) {
  std::unique_ptr<GgufFile> file(new GgufFile());
  file->impl_->mapping.Borrow(bytes);
  KF_ASSIGN_OR_RETURN(file->impl_->header, ParseGgufHeader(bytes));
  return file;
}

bool GgufFile::Has(std::string_view key) const {
  return impl_->header.values.contains(key);
}

absl::StatusOr<uint64_t> GgufFile::GetUint(std::string_view key) const {
  return impl_->Integer<uint64_t>(key);
}

absl::StatusOr<int64_t> GgufFile::GetInt(std::string_view key) const {
  return impl_->Integer<int64_t>(key);
}

absl::StatusOr<double> GgufFile::GetFloat(std::string_view key) const {
  KF_ASSIGN_OR_RETURN(const GgufValue* value, impl_->Find(key, false));
  if (value->type == GgufType::kFloat32) {
    return static_cast<double>(GgufLoad<float>(value->data));
  }
  if (value->type == GgufType::kFloat64) return GgufLoad<double>(value->data);
  return WrongType(key, *value, "float32 or float64");
}

absl::StatusOr<bool> GgufFile::GetBool(std::string_view key) const {
  KF_ASSIGN_OR_RETURN(const GgufValue* value, impl_->Find(key, false));
  if (value->type != GgufType::kBool) return WrongType(key, *value, "bool");
  const int stored = GgufLoad<uint8_t>(value->data);
  if (stored > 1) {
    return absl::InvalidArgumentError(absl::StrCat(
        "key ", GgufQuote(key), ": bool of value ", stored, ", want 0 or 1"));
  }
  return stored == 1;
}

absl::StatusOr<std::string_view> GgufFile::GetString(
    std::string_view key) const {
  KF_ASSIGN_OR_RETURN(const GgufValue* value, impl_->Find(key, false));
  if (value->type != GgufType::kString) return WrongType(key, *value, "string");
  const std::byte* p = value->data;
  return LoadString(p);
}

absl::StatusOr<std::vector<std::string_view>> GgufFile::GetStrings(
    std::string_view key) const {
  KF_ASSIGN_OR_RETURN(const GgufValue* value, impl_->Find(key, true));
  if (value->type != GgufType::kString) {
    return WrongType(key, *value, "string array");
  }
  // The parser saw every element, so the count is no lie.
  std::vector<std::string_view> strings;
  strings.reserve(static_cast<size_t>(value->count));
  const std::byte* p = value->data;
  for (uint64_t i = 0; i < value->count; ++i) strings.push_back(LoadString(p));
  return strings;
}

absl::StatusOr<std::vector<float>> GgufFile::GetFloats(
    std::string_view key) const {
  KF_ASSIGN_OR_RETURN(const GgufValue* value, impl_->Find(key, true));
  if (value->type != GgufType::kFloat32) {
    return WrongType(key, *value, "float32 array");
  }
  std::vector<float> floats(static_cast<size_t>(value->count));
  for (size_t i = 0; i < floats.size(); ++i) {
    floats[i] = GgufLoad<float>(value->data + i * sizeof(float));
  }
  return floats;
}

absl::StatusOr<std::vector<int64_t>> GgufFile::GetInts(
    std::string_view key) const {
  KF_ASSIGN_OR_RETURN(const GgufValue* value, impl_->Find(key, true));
  std::vector<int64_t> ints;
  ints.reserve(static_cast<size_t>(value->count));
  for (uint64_t i = 0; i < value->count; ++i) {
    KF_ASSIGN_OR_RETURN(const int64_t element,
                        ToInteger<int64_t>(key, *value, i));
    ints.push_back(element);
  }
  return ints;
}

absl::StatusOr<const GgufTensor*> GgufFile::Tensor(
    std::string_view name) const {
  const auto found = impl_->header.tensor_index.find(name);
  if (found == impl_->header.tensor_index.end()) {
    return absl::NotFoundError(
        absl::StrCat("tensor ", GgufQuote(name), " is missing"));
  }
  const GgufTensor* tensor = &impl_->header.tensors[found->second];
  const uint32_t type = static_cast<uint32_t>(tensor->type);
  if (!IsKnownDType(type)) {
    return absl::InvalidArgumentError(
        absl::StrCat("tensor ", GgufQuote(name), ": type ",
                     GgufTensorTypeName(type), " is not supported"));
  }
  return tensor;
}

bool GgufFile::HasTensor(std::string_view name) const {
  return impl_->header.tensor_index.contains(name);
}

size_t GgufFile::tensor_count() const { return impl_->header.tensors.size(); }

std::span<const GgufTensor> GgufFile::tensors() const {
  return impl_->header.tensors;
}

uint64_t GgufFile::file_bytes() const { return impl_->mapping.bytes().size(); }

}  // namespace kf::engine
