#include "tests/e2e/raw_rpc.h"

#include <grpcpp/impl/client_unary_call.h>

#include <vector>

#include "tests/e2e/harness.h"

namespace kf::testing {
namespace {

using grpc::internal::RpcMethod;

grpc::ByteBuffer ToBuffer(const std::string& bytes) {
  const grpc::Slice slice(bytes);
  return {&slice, 1};
}

std::string ToString(const grpc::ByteBuffer& buffer) {
  std::vector<grpc::Slice> slices;
  std::string bytes;
  if (!buffer.Dump(&slices).ok()) return bytes;
  for (const grpc::Slice& slice : slices) {
    bytes.append(reinterpret_cast<const char*>(slice.begin()), slice.size());
  }
  return bytes;
}

// HealthCheckRequest{service = 1}.
std::string HealthRequest(const std::string& service) {
  if (service.empty()) return "";
  return "\x0A" + std::string(1, static_cast<char>(service.size())) + service;
}

// HealthCheckResponse{status = 1}.
std::string HealthName(const std::string& response) {
  if (response == std::string("\x08\x01")) return "SERVING";
  if (response == std::string("\x08\x02")) return "NOT_SERVING";
  return "UNKNOWN";
}

// ServerReflectionRequest{list_services = 7}.
constexpr char kListServices[] = "\x3A\x01*";

std::unique_ptr<grpc::ClientReaderWriter<grpc::ByteBuffer, grpc::ByteBuffer>>
OpenReflection(grpc::Channel& channel, grpc::ClientContext& context) {
  using Factory = grpc::internal::ClientReaderWriterFactory<grpc::ByteBuffer,
                                                            grpc::ByteBuffer>;
  return std::unique_ptr<
      grpc::ClientReaderWriter<grpc::ByteBuffer, grpc::ByteBuffer>>(
      Factory::Create(&channel,
                      RpcMethod("/grpc.reflection.v1alpha."
                                "ServerReflection/ServerReflectionInfo",
                                RpcMethod::BIDI_STREAMING),
                      &context));
}

void Add(const Metadata& metadata, grpc::ClientContext& context) {
  if (!metadata.first.empty()) {
    context.AddMetadata(metadata.first, metadata.second);
  }
}

}  // namespace

std::pair<grpc::Status, std::string> CallRaw(
    const std::shared_ptr<grpc::Channel>& channel,
    const std::string& method,
    const std::string& request,
    const Metadata& metadata) {
  grpc::ClientContext context;
  SetPatience(context);
  Add(metadata, context);
  grpc::ByteBuffer response;
  const grpc::Status status =
      grpc::internal::BlockingUnaryCall<grpc::ByteBuffer, grpc::ByteBuffer>(
          channel.get(), RpcMethod(method.c_str(), RpcMethod::NORMAL_RPC),
          &context, ToBuffer(request), &response);
  return {status, status.ok() ? ToString(response) : ""};
}

std::string CheckHealth(const std::shared_ptr<grpc::Channel>& channel,
                        const std::string& service) {
  const auto [status, response] =
      CallRaw(channel, "/grpc.health.v1.Health/Check", HealthRequest(service));
  return status.ok() ? HealthName(response) : status.error_message();
}

HealthWatch::HealthWatch(std::shared_ptr<grpc::Channel> channel,
                         const std::string& service)
    : channel_(std::move(channel)) {
  SetPatience(context_);
  reader_.reset(grpc::internal::ClientReaderFactory<grpc::ByteBuffer>::Create(
      channel_.get(),
      RpcMethod("/grpc.health.v1.Health/Watch", RpcMethod::SERVER_STREAMING),
      &context_, ToBuffer(HealthRequest(service))));
}

HealthWatch::~HealthWatch() {
  context_.TryCancel();
  grpc::ByteBuffer ignored;
  while (reader_->Read(&ignored)) {
  }
  reader_->Finish();
}

std::string HealthWatch::Next() {
  grpc::ByteBuffer response;
  return reader_->Read(&response) ? HealthName(ToString(response)) : "END";
}

IdleReflection::IdleReflection(std::shared_ptr<grpc::Channel> channel)
    : channel_(std::move(channel)) {
  SetPatience(context_);
  stream_ = OpenReflection(*channel_, context_);
}

IdleReflection::~IdleReflection() {
  if (ended_) return;
  context_.TryCancel();
  End();
}

bool IdleReflection::Ask() {
  grpc::ByteBuffer response;
  return stream_->Write(ToBuffer(kListServices)) && stream_->Read(&response);
}

grpc::Status IdleReflection::End() {
  ended_ = true;
  stream_->WritesDone();
  grpc::ByteBuffer ignored;
  while (stream_->Read(&ignored)) {
  }
  return stream_->Finish();
}

std::pair<grpc::Status, std::string> ListServices(
    const std::shared_ptr<grpc::Channel>& channel, const Metadata& metadata) {
  grpc::ClientContext context;
  SetPatience(context);
  Add(metadata, context);
  const auto stream = OpenReflection(*channel, context);
  stream->Write(ToBuffer(kListServices));
  stream->WritesDone();
  grpc::ByteBuffer response;
  std::string bytes;
  while (stream->Read(&response)) bytes += ToString(response);
  return {stream->Finish(), bytes};
}

}  // namespace kf::testing
