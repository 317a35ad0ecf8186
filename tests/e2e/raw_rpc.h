// RPCs as bytes: for what our own stubs would not send, and for services whose
// stubs Debian does not ship (health, reflection).
#pragma once

#include <grpcpp/grpcpp.h>

#include <memory>
#include <string>
#include <utility>

namespace kf::testing {

using Metadata = std::pair<std::string, std::string>;

// One unary call; the response's bytes if OK.
std::pair<grpc::Status, std::string> CallRaw(
    const std::shared_ptr<grpc::Channel>& channel,
    const std::string& method,
    const std::string& request,
    const Metadata& metadata = {});

// grpc.health.v1: "SERVING", "NOT_SERVING", or the error's text.
std::string CheckHealth(const std::shared_ptr<grpc::Channel>& channel,
                        const std::string& service);

// An open health watch, cancelled with the object.
class HealthWatch {
 public:
  HealthWatch(std::shared_ptr<grpc::Channel> channel,
              const std::string& service);
  ~HealthWatch();
  std::string Next();  // blocks; as CheckHealth, "END" when it is over

 private:
  std::shared_ptr<grpc::Channel> channel_;
  grpc::ClientContext context_;
  std::unique_ptr<grpc::ClientReader<grpc::ByteBuffer>> reader_;
};

// A reflection stream that asks for nothing, cancelled with the object.
class IdleReflection {
 public:
  explicit IdleReflection(std::shared_ptr<grpc::Channel> channel);
  ~IdleReflection();
  // Ends it: its status.
  grpc::Status End();
  // Asks once; whether an answer came.
  bool Ask();

 private:
  std::shared_ptr<grpc::Channel> channel_;
  grpc::ClientContext context_;
  std::unique_ptr<grpc::ClientReaderWriter<grpc::ByteBuffer, grpc::ByteBuffer>>
      stream_;
  bool ended_ = false;
};

// Server reflection's list of services, as the raw response.
std::pair<grpc::Status, std::string> ListServices(
    const std::shared_ptr<grpc::Channel>& channel,
    const Metadata& metadata = {});

}  // namespace kf::testing
