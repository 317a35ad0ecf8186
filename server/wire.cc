#include "server/wire.h"

#include <cstdint>
#include <map>
#include <string>

#include "google/protobuf/descriptor.h"
#include "google/protobuf/io/coded_stream.h"
#include "google/protobuf/wire_format_lite.h"
#include "kernels/core/status.h"
#include "server/utf8.h"

namespace kf::server {
namespace {

using google::protobuf::Descriptor;
using google::protobuf::FieldDescriptor;
using google::protobuf::internal::WireFormatLite;
using google::protobuf::io::CodedInputStream;

// No request nests deeper than 4; a schema that grows has room.
constexpr int kMaxDepth = 16;

// Where the walk is; only turned into text when something is wrong.
struct Place {
  const Place* parent = nullptr;
  const FieldDescriptor* field = nullptr;
  int index = -1;  // of a repeated field
};

std::string PathOf(const Place& place) {
  std::string path = place.parent != nullptr && place.parent->field != nullptr
                         ? PathOf(*place.parent) + "."
                         : "";
  path += place.field->name();
  if (place.index >= 0) path += absl::StrCat("[", place.index, "]");
  return path;
}

absl::Status Malformed(const Place& at, const Descriptor& type) {
  if (at.field == nullptr) {
    return absl::InvalidArgumentError(absl::StrCat(
        "request: the bytes are no ", type.full_name(), " message"));
  }
  return absl::InvalidArgumentError(absl::StrCat(
      PathOf(at), ": the bytes are no ", type.full_name(), " message"));
}

// What one message has used up of its bounds. Counted over the whole message:
// protobuf joins the occurrences of a singular one, so that any number of
// shorter lists would make a long one.
struct Counts {
  std::map<const FieldDescriptor*, int> entries;  // of strings and messages
  int unknown = 0;
};

absl::Status Walk(std::string_view bytes,
                  const Descriptor& type,
                  const Place& at,
                  int depth,
                  Counts& counts);

absl::Status WalkLengthDelimited(std::string_view payload,
                                 const Place& place,
                                 int depth,
                                 Counts& counts) {
  const FieldDescriptor& field = *place.field;
  if (field.type() == FieldDescriptor::TYPE_STRING) {
    const size_t valid = ValidUtf8Prefix(payload);
    if (valid != payload.size()) {
      return absl::InvalidArgumentError(
          absl::StrCat(PathOf(place), ": not UTF-8 at byte ", valid));
    }
  } else if (field.type() == FieldDescriptor::TYPE_MESSAGE) {
    return Walk(payload, *field.message_type(), place, depth + 1, counts);
  }
  return absl::OkStatus();
}

// Whether protobuf reads this tag as `field`, and not as an unknown one.
bool IsOf(const FieldDescriptor& field, uint32_t tag) {
  const auto type = WireFormatLite::GetTagWireType(tag);
  if (field.is_packable() &&
      type == WireFormatLite::WIRETYPE_LENGTH_DELIMITED) {
    return true;
  }
  return type == WireFormatLite::WireTypeForFieldType(
                     static_cast<WireFormatLite::FieldType>(field.type()));
}

// Steps over a field that holds neither bytes nor messages, or is unknown.
absl::Status SkipOther(const FieldDescriptor* field,
                       uint32_t tag,
                       CodedInputStream& input,
                       const Place& at,
                       const Descriptor& type,
                       Counts& counts) {
  const bool group = WireFormatLite::GetTagWireType(tag) ==
                     WireFormatLite::WIRETYPE_START_GROUP;
  if (group || !WireFormatLite::SkipField(&input, tag)) {
    return Malformed(at, type);
  }
  if (field != nullptr && IsOf(*field, tag)) return absl::OkStatus();
  if (++counts.unknown > kMaxUnknownFields) {
    return absl::InvalidArgumentError(absl::StrCat(
        "request: more than ", kMaxUnknownFields, " unknown fields"));
  }
  return absl::OkStatus();
}

absl::Status Walk(std::string_view bytes,
                  const Descriptor& type,
                  const Place& at,
                  int depth,
                  Counts& counts) {
  if (depth > kMaxDepth) {
    return absl::InvalidArgumentError(
        absl::StrCat(PathOf(at), ": nested deeper than ", kMaxDepth));
  }
  CodedInputStream input(reinterpret_cast<const uint8_t*>(bytes.data()),
                         static_cast<int>(bytes.size()));
  while (!input.ExpectAtEnd()) {
    const uint32_t tag = input.ReadTag();
    if (tag == 0) {
      if (input.CurrentPosition() == static_cast<int>(bytes.size())) break;
      return Malformed(at, type);
    }
    const FieldDescriptor* field =
        type.FindFieldByNumber(WireFormatLite::GetTagFieldNumber(tag));
    const bool holds_bytes =
        field != nullptr &&
        (field->cpp_type() == FieldDescriptor::CPPTYPE_STRING ||
         field->cpp_type() == FieldDescriptor::CPPTYPE_MESSAGE);
    if (!holds_bytes) {
      KF_RETURN_IF_ERROR(SkipOther(field, tag, input, at, type, counts));
      continue;
    }
    Place place{&at, field, -1};
    if (field->is_repeated()) {
      place.index = counts.entries[field]++;
      if (place.index >= kMaxRepeatedEntries) {
        place.index = -1;
        return absl::InvalidArgumentError(absl::StrCat(
            PathOf(place), ": more than ", kMaxRepeatedEntries, " entries"));
      }
    }
    uint32_t length = 0;
    if (!IsOf(*field, tag) || !input.ReadVarint32(&length)) {
      return Malformed(at, type);
    }
    const size_t start = static_cast<size_t>(input.CurrentPosition());
    if (length > bytes.size() - start) return Malformed(place, type);
    KF_RETURN_IF_ERROR(
        WalkLengthDelimited(bytes.substr(start, length), place, depth, counts));
    input.Skip(static_cast<int>(length));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status ParseMessage(std::string_view bytes,
                          google::protobuf::Message* message) {
  const Descriptor& type = *message->GetDescriptor();
  // gRPC's own limit is far below; int is what protobuf counts in.
  if (bytes.size() > INT32_MAX) return Malformed({}, type);
  Counts counts;
  KF_RETURN_IF_ERROR(Walk(bytes, type, {}, 0, counts));
  if (!message->ParseFromArray(bytes.data(), static_cast<int>(bytes.size()))) {
    return Malformed({}, type);
  }
  return absl::OkStatus();
}

}  // namespace kf::server
