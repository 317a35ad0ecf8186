// Who may connect and call: TLS credentials and bearer tokens, on gRPC's side.
#pragma once

#include <grpcpp/security/server_credentials.h>
#include <grpcpp/server_builder.h>

#include <map>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/auth.h"
#include "server/options.h"

namespace kf::server {

// Insecure where TLS is off. Otherwise the files are looked at again every
// second, so a new certificate needs no restart. kInvalidArgument: the files
// are bad now.
absl::StatusOr<std::shared_ptr<grpc::ServerCredentials>> MakeCredentials(
    const TlsOptions& options);

// kUnauthenticated unless the call's "authorization" holds one of the tokens.
// `tokens` null: everyone is let in.
absl::Status CheckToken(
    TokenFile* tokens,
    const std::multimap<grpc::string_ref, grpc::string_ref>& metadata);

// Checks the calls of services that are not ours to write (reflection); ours
// check for themselves, and health is exempt.
void AddTokenInterceptor(TokenFile& tokens, grpc::ServerBuilder* builder);

}  // namespace kf::server
