// Names, numbers and types of the wire contract, against a checked-in table:
// clients exist against them, so the table only ever grows.
#include <gtest/gtest.h>

#include <fstream>
#include <sstream>
#include <string>

#include "absl/strings/str_cat.h"
#include "google/protobuf/descriptor.h"
#include "keyformer/v1/generation.pb.h"

namespace kf::server {
namespace {

using google::protobuf::Descriptor;
using google::protobuf::EnumDescriptor;
using google::protobuf::FieldDescriptor;
using google::protobuf::FileDescriptor;
using google::protobuf::ServiceDescriptor;

std::string TypeOf(const FieldDescriptor& field) {
  if (field.is_map()) {
    return absl::StrCat("map<", field.message_type()->map_key()->type_name(),
                        ",", field.message_type()->map_value()->type_name(),
                        ">");
  }
  std::string type =
      field.message_type() != nullptr ? field.message_type()->full_name()
      : field.enum_type() != nullptr  ? field.enum_type()->full_name()
                                      : field.type_name();
  if (field.is_repeated()) type = "repeated " + type;
  if (field.has_optional_keyword()) type = "optional " + type;
  if (field.real_containing_oneof() != nullptr) {
    type += " oneof " + field.real_containing_oneof()->name();
  }
  return type;
}

std::string Table(const FileDescriptor& file) {
  std::string table;
  for (int i = 0; i < file.service_count(); ++i) {
    const ServiceDescriptor& service = *file.service(i);
    for (int j = 0; j < service.method_count(); ++j) {
      const auto& method = *service.method(j);
      absl::StrAppend(&table, "rpc ", method.full_name(), " ",
                      method.input_type()->full_name(), " -> ",
                      method.server_streaming() ? "stream " : "",
                      method.output_type()->full_name(), "\n");
    }
  }
  for (int i = 0; i < file.message_type_count(); ++i) {
    const Descriptor& message = *file.message_type(i);
    for (int j = 0; j < message.field_count(); ++j) {
      const FieldDescriptor& field = *message.field(j);
      absl::StrAppend(&table, message.name(), ".", field.name(), " ",
                      field.number(), " ", TypeOf(field), "\n");
    }
  }
  for (int i = 0; i < file.enum_type_count(); ++i) {
    const EnumDescriptor& type = *file.enum_type(i);
    for (int j = 0; j < type.value_count(); ++j) {
      absl::StrAppend(&table, type.name(), " ", type.value(j)->name(), " ",
                      type.value(j)->number(), "\n");
    }
  }
  return table;
}

TEST(Contract, NamesNumbersAndTypesStay) {
  std::ifstream file(KF_SOURCE_DIR "/tests/server/contract.txt");
  std::stringstream want;
  want << file.rdbuf();
  EXPECT_EQ(Table(*::keyformer::v1::GenerateRequest::descriptor()->file()),
            want.str());
}

}  // namespace
}  // namespace kf::server
