// grpc.health.v1.Health/Check over a channel. Debian ships the server's side of
// the protocol and no generated client, and two fields need none.
#pragma once

#include <grpcpp/grpcpp.h>

#include <memory>
#include <string>

namespace kf::tools {

// `state`: "SERVING", "NOT_SERVING", "SERVICE_UNKNOWN" or "UNKNOWN". Blocks.
grpc::Status HealthCheck(const std::shared_ptr<grpc::Channel>& channel,
                         const std::string& service,
                         grpc::ClientContext* context,
                         std::string* state);

}  // namespace kf::tools
