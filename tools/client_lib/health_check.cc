#include "tools/client_lib/health_check.h"

#include <google/protobuf/io/coded_stream.h>
#include <google/protobuf/io/zero_copy_stream_impl_lite.h>
#include <google/protobuf/wire_format_lite.h>
#include <grpcpp/generic/generic_stub.h>

#include <cstdint>
#include <future>
#include <vector>

namespace kf::tools {
namespace {

using google::protobuf::internal::WireFormatLite;
using google::protobuf::io::CodedInputStream;
using google::protobuf::io::CodedOutputStream;

// HealthCheckRequest { string service = 1; }
grpc::ByteBuffer EncodeRequest(const std::string& service) {
  std::string bytes;
  {
    google::protobuf::io::StringOutputStream raw(&bytes);
    CodedOutputStream out(&raw);
    WireFormatLite::WriteString(1, service, &out);
  }
  const grpc::Slice slice(bytes);
  return {&slice, 1};
}

// HealthCheckResponse { ServingStatus status = 1; }
std::string DecodeState(const grpc::ByteBuffer& buffer) {
  std::vector<grpc::Slice> slices;
  if (!buffer.Dump(&slices).ok()) return "UNKNOWN";
  std::string bytes;
  for (const grpc::Slice& slice : slices) {
    bytes.append(reinterpret_cast<const char*>(slice.begin()), slice.size());
  }
  CodedInputStream in(reinterpret_cast<const uint8_t*>(bytes.data()),
                      static_cast<int>(bytes.size()));
  uint64_t status = 0;
  while (const uint32_t tag = in.ReadTag()) {
    if (WireFormatLite::GetTagFieldNumber(tag) == 1) {
      if (!in.ReadVarint64(&status)) return "UNKNOWN";
    } else if (!WireFormatLite::SkipField(&in, tag)) {
      return "UNKNOWN";
    }
  }
  switch (status) {
    case 1:
      return "SERVING";
    case 2:
      return "NOT_SERVING";
    case 3:
      return "SERVICE_UNKNOWN";
    default:
      return "UNKNOWN";
  }
}

}  // namespace

grpc::Status HealthCheck(const std::shared_ptr<grpc::Channel>& channel,
                         const std::string& service,
                         grpc::ClientContext* context,
                         std::string* state) {
  grpc::GenericStub stub(channel);
  const grpc::ByteBuffer request = EncodeRequest(service);
  grpc::ByteBuffer response;
  // Shared: the callback may still be inside set_value when get returns.
  const auto done = std::make_shared<std::promise<grpc::Status>>();
  stub.UnaryCall(context, "/grpc.health.v1.Health/Check", grpc::StubOptions(),
                 &request, &response,
                 [done](grpc::Status result) { done->set_value(result); });
  grpc::Status status = done->get_future().get();
  if (status.ok()) *state = DecodeState(response);
  return status;
}

}  // namespace kf::tools
