#include "server/status.h"

#include <string>
#include <string_view>

#include "kernels/core/status.h"
#include "server/utf8.h"

namespace kf::server {

grpc::Status ToGrpcStatus(const absl::Status& status) {
  if (status.ok()) return grpc::Status::OK;
  std::string message =
      CutUtf8(ToStd(status.message()), kMaxStatusMessageBytes);
  for (size_t bad = ValidUtf8Prefix(message); bad < message.size();
       bad = ValidUtf8Prefix(message)) {
    message[bad] = '?';
  }
  return {static_cast<grpc::StatusCode>(status.code()), message};
}

}  // namespace kf::server
