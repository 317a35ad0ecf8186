#include "server/security.h"

#include <grpc/grpc.h>
#include <grpcpp/security/tls_certificate_provider.h>
#include <grpcpp/security/tls_credentials_options.h>
#include <grpcpp/support/server_interceptor.h>

#include <string_view>
#include <utility>
#include <vector>

#include "kernels/core/status.h"
#include "server/tls_check.h"

namespace kf::server {
namespace {

using grpc::experimental::InterceptionHookPoints;
using grpc::experimental::InterceptorBatchMethods;
using grpc::experimental::ServerRpcInfo;

constexpr unsigned kRefreshSeconds = 1;
constexpr std::string_view kReflection = "/grpc.reflection.";

class TokenInterceptor final : public grpc::experimental::Interceptor {
 public:
  TokenInterceptor(TokenFile& tokens, ServerRpcInfo* rpc)
      : tokens_(tokens), rpc_(rpc) {}

  void Intercept(InterceptorBatchMethods* methods) override {
    if (methods->QueryInterceptionHookPoint(
            InterceptionHookPoints::POST_RECV_INITIAL_METADATA)) {
      const absl::Status status =
          CheckToken(&tokens_, *methods->GetRecvInitialMetadata());
      // An interceptor cannot refuse a call; ending it below the handler can.
      if (!status.ok()) {
        grpc_call_cancel_with_status(
            rpc_->server_context()->c_call(), GRPC_STATUS_UNAUTHENTICATED,
            std::string(status.message()).c_str(), nullptr);
      }
    }
    methods->Proceed();
  }

 private:
  TokenFile& tokens_;
  ServerRpcInfo* rpc_;  // outlives the interceptor
};

class TokenInterceptorFactory final
    : public grpc::experimental::ServerInterceptorFactoryInterface {
 public:
  explicit TokenInterceptorFactory(TokenFile& tokens) : tokens_(tokens) {}

  grpc::experimental::Interceptor* CreateServerInterceptor(
      ServerRpcInfo* rpc) override {
    const std::string_view method = rpc->method();
    if (method.substr(0, kReflection.size()) != kReflection) return nullptr;
    return new TokenInterceptor(tokens_, rpc);  // gRPC owns it
  }

 private:
  TokenFile& tokens_;
};

}  // namespace

absl::StatusOr<std::shared_ptr<grpc::ServerCredentials>> MakeCredentials(
    const TlsOptions& options) {
  if (!options.enabled()) return grpc::InsecureServerCredentials();
  KF_RETURN_IF_ERROR(CheckTlsFiles(options));
  auto provider =
      std::make_shared<grpc::experimental::FileWatcherCertificateProvider>(
          options.key_path, options.cert_path, options.client_ca_path,
          kRefreshSeconds);
  grpc::experimental::TlsServerCredentialsOptions tls(provider);
  tls.watch_identity_key_cert_pairs();
  if (!options.client_ca_path.empty()) {
    tls.watch_root_certs();
    tls.set_cert_request_type(
        GRPC_SSL_REQUEST_AND_REQUIRE_CLIENT_CERTIFICATE_AND_VERIFY);
  }
  return grpc::experimental::TlsServerCredentials(tls);
}

absl::Status CheckToken(
    TokenFile* tokens,
    const std::multimap<grpc::string_ref, grpc::string_ref>& metadata) {
  if (tokens == nullptr) return absl::OkStatus();
  const auto header = metadata.find("authorization");
  if (header == metadata.end()) {
    return absl::UnauthenticatedError(
        "authorization: missing, want \"Bearer TOKEN\"");
  }
  if (!tokens->Allows({header->second.data(), header->second.size()})) {
    return absl::UnauthenticatedError(
        "authorization: wrong, want \"Bearer TOKEN\" with a known token");
  }
  return absl::OkStatus();
}

void AddTokenInterceptor(TokenFile& tokens, grpc::ServerBuilder* builder) {
  std::vector<
      std::unique_ptr<grpc::experimental::ServerInterceptorFactoryInterface>>
      factories;
  factories.push_back(std::make_unique<TokenInterceptorFactory>(tokens));
  builder->experimental().SetInterceptorCreators(std::move(factories));
}

}  // namespace kf::server
