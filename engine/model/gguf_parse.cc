#include "engine/model/gguf_parse.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/core/status.h"

namespace kf::engine {
namespace {

template <typename... Args>
absl::Status Invalid(const Args&... args) {
  return absl::InvalidArgumentError(absl::StrCat(args...));
}

// Reads forward; every read is checked against the end first.
class Reader {
 public:
  explicit Reader(std::span<const std::byte> file) : file_(file) {}

  uint64_t at() const { return at_; }
  uint64_t left() const { return file_.size() - at_; }
  const std::byte* here() const { return file_.data() + at_; }

  absl::Status Skip(uint64_t bytes, std::string_view what) {
    if (bytes > left()) {
      return Invalid(ToAbsl(what), ": ", bytes, " bytes wanted at byte ", at_,
                     ", the file has ", left(), " more (truncated?)");
    }
    at_ += bytes;
    return absl::OkStatus();
  }

  template <typename T>
  absl::StatusOr<T> Read(std::string_view what) {
    const std::byte* from = here();
    KF_RETURN_IF_ERROR(Skip(sizeof(T), what));
    return GgufLoad<T>(from);
  }

  absl::StatusOr<std::string_view> ReadString(std::string_view what,
                                              uint64_t max_bytes) {
    const uint64_t start = at_;
    KF_ASSIGN_OR_RETURN(const uint64_t bytes, Read<uint64_t>(what));
    if (bytes > max_bytes) {
      return Invalid(ToAbsl(what), ": length ", bytes, " at byte ", start,
                     ", want at most ", max_bytes);
    }
    const std::byte* from = here();
    KF_RETURN_IF_ERROR(Skip(bytes, what));
    return std::string_view(reinterpret_cast<const char*>(from),
                            static_cast<size_t>(bytes));
  }

 private:
  std::span<const std::byte> file_;
  uint64_t at_ = 0;
};

// Leaves the reader behind `count` elements of `type`.
absl::Status SkipElements(Reader& reader,
                          GgufType type,
                          uint64_t count,
                          std::string_view what) {
  if (type == GgufType::kString) {
    // Each string has at least its length, so a lying count ends here at once.
    if (count > reader.left() / sizeof(uint64_t)) {
      return Invalid(ToAbsl(what), ": ", count, " strings at byte ",
                     reader.at(), ", the file has ", reader.left(),
                     " more bytes");
    }
    for (uint64_t i = 0; i < count; ++i) {
      KF_RETURN_IF_ERROR(
          reader.ReadString(what, std::numeric_limits<uint64_t>::max())
              .status());
    }
    return absl::OkStatus();
  }
  const uint64_t bytes = GgufTypeBytes(type);
  if (count > reader.left() / bytes) {
    return Invalid(ToAbsl(what), ": ", count, " values of ", bytes,
                   " bytes at byte ", reader.at(), ", the file has ",
                   reader.left(), " more bytes");
  }
  return reader.Skip(count * bytes, what);
}

bool IsElementType(GgufType type) {
  return type == GgufType::kString || GgufTypeBytes(type) > 0;
}

absl::StatusOr<GgufValue> ReadValue(Reader& reader, std::string_view key) {
  const std::string what = absl::StrCat("key ", GgufQuote(key));
  const uint64_t start = reader.at();
  KF_ASSIGN_OR_RETURN(const uint32_t type, reader.Read<uint32_t>(what));
  GgufValue value;
  value.type = static_cast<GgufType>(type);
  value.count = 1;
  if (value.type == GgufType::kArray) {
    value.is_array = true;
    KF_ASSIGN_OR_RETURN(const uint32_t element, reader.Read<uint32_t>(what));
    KF_ASSIGN_OR_RETURN(value.count, reader.Read<uint64_t>(what));
    value.type = static_cast<GgufType>(element);
    if (value.type == GgufType::kArray) {
      return Invalid(what, ": array of arrays at byte ", start,
                     " is not supported");
    }
  }
  if (!IsElementType(value.type)) {
    return Invalid(what, ": unknown value ", GgufTypeName(value.type),
                   " at byte ", start, ", want 0 to 12");
  }
  value.data = reader.here();
  KF_RETURN_IF_ERROR(SkipElements(reader, value.type, value.count, what));
  return value;
}

absl::Status CheckCount(std::string_view what, uint64_t count, uint64_t max) {
  if (count <= max) return absl::OkStatus();
  return Invalid("number of ", ToAbsl(what), ": ", count, ", want at most ",
                 max);
}

absl::Status ReadValues(Reader& reader, uint64_t count, GgufHeader& header) {
  KF_RETURN_IF_ERROR(CheckCount("keys", count, kMaxGgufKeys));
  for (uint64_t i = 0; i < count; ++i) {
    const uint64_t start = reader.at();
    KF_ASSIGN_OR_RETURN(const std::string_view key,
                        reader.ReadString("key name", kMaxGgufKeyBytes));
    if (key.empty()) return Invalid("empty key name at byte ", start);
    KF_ASSIGN_OR_RETURN(const GgufValue value, ReadValue(reader, key));
    if (!header.values.emplace(key, value).second) {
      return Invalid("key ", GgufQuote(key), " appears again at byte ", start);
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<uint64_t> ReadAlignment(const GgufHeader& header) {
  const auto found = header.values.find("general.alignment");
  if (found == header.values.end()) return kDefaultGgufAlignment;
  const GgufValue& value = found->second;
  if (value.is_array || value.type != GgufType::kUint32) {
    return Invalid("general.alignment: type ", GgufTypeName(value.type),
                   value.is_array ? " array" : "", ", want uint32");
  }
  const uint64_t alignment = GgufLoad<uint32_t>(value.data);
  if (!std::has_single_bit(alignment) || alignment > kMaxGgufAlignment) {
    return Invalid("general.alignment: ", alignment,
                   ", want a power of two up to ", kMaxGgufAlignment);
  }
  return alignment;
}

// Fills dims and, for a type that we read, bytes.
absl::Status ReadShape(Reader& reader,
                       std::string_view what,
                       GgufTensor& tensor) {
  const uint64_t start = reader.at();
  KF_ASSIGN_OR_RETURN(const uint32_t rank, reader.Read<uint32_t>(what));
  if (rank < 1 || rank > 4) {
    return Invalid(ToAbsl(what), ": ", rank, " dimensions at byte ", start,
                   ", want 1 to 4");
  }
  uint64_t elements = 1;
  for (uint32_t i = 0; i < rank; ++i) {
    KF_ASSIGN_OR_RETURN(const uint64_t dim, reader.Read<uint64_t>(what));
    // 2^48 elements are more than any file holds, and leave bytes far from
    // overflow.
    constexpr uint64_t kMaxElements = uint64_t{1} << 48;
    if (dim == 0 || dim > kMaxElements / elements) {
      return Invalid(ToAbsl(what), ": dimension ", i, " is ", dim,
                     ", want at least 1 and a product up to 2^48");
    }
    elements *= dim;
    tensor.dims.push_back(static_cast<int64_t>(dim));
  }
  KF_ASSIGN_OR_RETURN(const uint32_t type, reader.Read<uint32_t>(what));
  tensor.type = static_cast<DType>(type);
  if (!IsKnownDType(type)) return absl::OkStatus();
  const BlockLayout layout = LayoutOf(tensor.type);
  if (tensor.dims[0] % layout.elements != 0) {
    return Invalid(ToAbsl(what), ": ", tensor.dims[0],
                   " columns, want a multiple of ", layout.elements,
                   " for type ", GgufTensorTypeName(type));
  }
  tensor.bytes = elements / static_cast<uint64_t>(layout.elements) *
                 static_cast<uint64_t>(layout.bytes);
  return absl::OkStatus();
}

// Appends one tensor and its offset in the data section.
absl::Status ReadTensor(Reader& reader,
                        uint64_t alignment,
                        GgufHeader& header,
                        std::vector<uint64_t>& offsets) {
  const uint64_t start = reader.at();
  KF_ASSIGN_OR_RETURN(
      const std::string_view name,
      reader.ReadString("tensor name", kMaxGgufTensorNameBytes));
  if (name.empty()) return Invalid("empty tensor name at byte ", start);
  const std::string what = absl::StrCat("tensor ", GgufQuote(name));
  if (!header.tensor_index.emplace(name, header.tensors.size()).second) {
    return Invalid(what, " appears again at byte ", start);
  }
  GgufTensor tensor;
  tensor.name = name;
  KF_RETURN_IF_ERROR(ReadShape(reader, what, tensor));
  KF_ASSIGN_OR_RETURN(const uint64_t offset, reader.Read<uint64_t>(what));
  if (offset % alignment != 0) {
    return Invalid(what, ": offset ", offset, " is no multiple of ", alignment);
  }
  header.tensors.push_back(std::move(tensor));
  offsets.push_back(offset);
  return absl::OkStatus();
}

// Two tensors that share bytes would be read as each other's numbers.
absl::Status CheckOverlap(const GgufHeader& header) {
  std::vector<const GgufTensor*> order;
  for (const GgufTensor& tensor : header.tensors) {
    if (tensor.bytes > 0) order.push_back(&tensor);
  }
  std::sort(order.begin(), order.end(),
            [](const GgufTensor* a, const GgufTensor* b) {
              return a->data < b->data;
            });
  for (size_t i = 1; i < order.size(); ++i) {
    const uint64_t distance =
        static_cast<uint64_t>(order[i]->data - order[i - 1]->data);
    if (distance < order[i - 1]->bytes) {
      return Invalid("tensor ", GgufQuote(order[i]->name),
                     " overlaps the data of tensor ",
                     GgufQuote(order[i - 1]->name));
    }
  }
  return absl::OkStatus();
}

absl::Status ReadTensors(Reader& reader,
                         std::span<const std::byte> file,
                         uint64_t count,
                         GgufHeader& header) {
  KF_RETURN_IF_ERROR(CheckCount("tensors", count, kMaxGgufTensors));
  KF_ASSIGN_OR_RETURN(const uint64_t alignment, ReadAlignment(header));
  std::vector<uint64_t> offsets;
  for (uint64_t i = 0; i < count; ++i) {
    KF_RETURN_IF_ERROR(ReadTensor(reader, alignment, header, offsets));
  }
  // No overflow: at() is at most the file's size.
  const uint64_t data_start =
      (reader.at() + alignment - 1) / alignment * alignment;
  const uint64_t data_bytes =
      data_start < file.size() ? file.size() - data_start : 0;
  for (size_t i = 0; i < header.tensors.size(); ++i) {
    GgufTensor& tensor = header.tensors[i];
    if (offsets[i] > data_bytes || tensor.bytes > data_bytes - offsets[i]) {
      return Invalid("tensor ", GgufQuote(tensor.name), ": ", tensor.bytes,
                     " bytes at offset ", offsets[i],
                     " of the data section, which has ", data_bytes,
                     " (truncated?)");
    }
    // An unknown type's extent is unknown too; its data is never handed out.
    if (tensor.bytes > 0) tensor.data = file.data() + data_start + offsets[i];
  }
  return CheckOverlap(header);
}

absl::Status CheckMagicAndVersion(Reader& reader) {
  constexpr std::string_view kMagic = "GGUF";
  const char* start = reinterpret_cast<const char*>(reader.here());
  KF_RETURN_IF_ERROR(reader.Skip(kMagic.size(), "magic"));
  if (std::string_view(start, kMagic.size()) != kMagic) {
    return Invalid("not a GGUF file: it starts with \"",
                   GgufQuote({start, kMagic.size()}), "\"");
  }
  KF_ASSIGN_OR_RETURN(const uint32_t version, reader.Read<uint32_t>("version"));
  if (version == 2 || version == 3) return absl::OkStatus();
  if (version != 0 && (version & 0xFFFFU) == 0) {
    return Invalid("big-endian GGUF files are not supported");
  }
  return Invalid("GGUF version ", version, " is not supported, want 2 or 3");
}

}  // namespace

absl::StatusOr<GgufHeader> ParseGgufHeader(std::span<const std::byte> file) {
  Reader reader(file);
  KF_RETURN_IF_ERROR(CheckMagicAndVersion(reader));
  KF_ASSIGN_OR_RETURN(const uint64_t tensors,
                      reader.Read<uint64_t>("number of tensors"));
  KF_ASSIGN_OR_RETURN(const uint64_t keys,
                      reader.Read<uint64_t>("number of keys"));
  GgufHeader header;
  KF_RETURN_IF_ERROR(ReadValues(reader, keys, header));
  KF_RETURN_IF_ERROR(ReadTensors(reader, file, tensors, header));
  return header;
}

}  // namespace kf::engine
