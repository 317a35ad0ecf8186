// Looks at TLS files before gRPC does: it would report a bad pair only as
// handshakes that fail.
#pragma once

#include "absl/status/status.h"
#include "server/options.h"

namespace kf::server {

// The certificate chain and the key can be read and belong together; the client
// CA bundle holds at least one certificate. kInvalidArgument names the flag and
// the file.
absl::Status CheckTlsFiles(const TlsOptions& options);

}  // namespace kf::server
