#include "tools/client_lib/client.h"

#include <grpcpp/grpcpp.h>

#include <chrono>
#include <utility>

#include "kernels/core/status.h"
#include "keyformer/v1/generation.grpc.pb.h"
#include "tools/client_lib/health_check.h"
#include "tools/client_lib/text_input.h"

namespace kf::tools {
namespace {

using Clock = std::chrono::system_clock;

constexpr double kConnectSeconds = 10.0;  // for a host that never answers

Clock::time_point After(double seconds) {
  return Clock::now() + std::chrono::duration_cast<Clock::duration>(
                            std::chrono::duration<double>(seconds));
}

absl::Status FromGrpc(const grpc::Status& status) {
  if (status.ok()) return absl::OkStatus();
  const std::string& message = status.error_message();
  return {static_cast<absl::StatusCode>(status.error_code()), ToAbsl(message)};
}

absl::StatusOr<std::string> ReadOptional(const std::string& path) {
  if (path.empty()) return std::string();
  return ReadText(path);
}

std::string FirstLine(const std::string& text) {
  const std::string line = text.substr(0, text.find_first_of("\r\n"));
  const size_t first = line.find_first_not_of(" \t");
  if (first == std::string::npos) return "";
  return line.substr(first, line.find_last_not_of(" \t") - first + 1);
}

absl::StatusOr<std::shared_ptr<grpc::ChannelCredentials>> MakeCredentials(
    const ConnectOptions& options) {
  if (options.tls_cert.empty() != options.tls_key.empty()) {
    return absl::InvalidArgumentError(
        "tls_cert and tls_key: one is set, mutual TLS needs both");
  }
  if (options.tls_ca.empty() && options.tls_cert.empty()) {
    return grpc::InsecureChannelCredentials();
  }
  grpc::SslCredentialsOptions ssl;
  KF_ASSIGN_OR_RETURN(ssl.pem_root_certs, ReadOptional(options.tls_ca));
  KF_ASSIGN_OR_RETURN(ssl.pem_cert_chain, ReadOptional(options.tls_cert));
  KF_ASSIGN_OR_RETURN(ssl.pem_private_key, ReadOptional(options.tls_key));
  return grpc::SslCredentials(ssl);
}

// Until the channel is ready; the first refusal ends it unless `patient`.
bool WaitUntilReady(grpc::Channel& channel,
                    Clock::time_point deadline,
                    bool patient) {
  grpc_connectivity_state state = channel.GetState(/*try_to_connect=*/true);
  while (state != GRPC_CHANNEL_READY) {
    if (state == GRPC_CHANNEL_TRANSIENT_FAILURE && !patient) return false;
    if (!channel.WaitForStateChange(state, deadline)) return false;
    state = channel.GetState(/*try_to_connect=*/true);
  }
  return true;
}

}  // namespace

struct Client::Impl {
  std::shared_ptr<grpc::Channel> channel;
  std::unique_ptr<pb::GenerationService::Stub> stub;
  std::string authorization;  // "Bearer ..." or empty

  // One unary call with the token, the deadline and the cancel token in place.
  template <typename Response, typename Call>
  absl::StatusOr<Response> Unary(const CallOptions& options, Call call) {
    grpc::ClientContext context;
    Prepare(context, options);
    Response response;
    const grpc::Status status = call(&context, &response);
    if (options.cancel != nullptr) options.cancel->Detach();
    if (!status.ok()) return FromGrpc(status);
    return response;
  }

  void Prepare(grpc::ClientContext& context, const CallOptions& options) {
    if (!authorization.empty()) {
      context.AddMetadata("authorization", authorization);
    }
    if (options.timeout_s > 0.0) {
      context.set_deadline(After(options.timeout_s));
    }
    if (options.cancel != nullptr) {
      options.cancel->Attach([&context] { context.TryCancel(); });
    }
  }
};

Client::Client(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Client::~Client() = default;

absl::StatusOr<std::unique_ptr<Client>> Client::Connect(
    const ConnectOptions& options) {
  if (options.server.find(':') == std::string::npos) {
    return absl::InvalidArgumentError(
        absl::StrCat("server: \"", options.server, "\", want host:port"));
  }
  auto impl = std::make_unique<Impl>();
  KF_ASSIGN_OR_RETURN(auto credentials, MakeCredentials(options));
  KF_ASSIGN_OR_RETURN(std::string token, ReadOptional(options.token_file));
  if (!options.token_file.empty()) {
    token = FirstLine(token);
    if (token.empty()) {
      return absl::InvalidArgumentError(absl::StrCat(
          "token_file: ", options.token_file, ": the first line is empty"));
    }
    impl->authorization = "Bearer " + token;
  }
  grpc::ChannelArguments args;
  args.SetMaxReceiveMessageSize(-1);  // log-probabilities can be large
  args.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  args.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, 1000);
  // Each Client has a connection of its own.
  args.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  impl->channel = grpc::CreateCustomChannel(options.server, credentials, args);
  const bool patient = options.wait_s > 0.0;
  const double seconds = patient ? options.wait_s : kConnectSeconds;
  if (!WaitUntilReady(*impl->channel, After(seconds), patient)) {
    return absl::UnavailableError(absl::StrCat(
        "cannot connect to ", options.server,
        options.tls_ca.empty() && options.tls_cert.empty() ? "" : " with TLS",
        ": is the server running there? (scripts/serve.sh starts one)"));
  }
  impl->stub = pb::GenerationService::NewStub(impl->channel);
  return std::unique_ptr<Client>(new Client(std::move(impl)));
}

absl::Status Client::Stream(const pb::GenerateRequest& request,
                            const CallOptions& call,
                            const ChunkFn& on_chunk) {
  grpc::ClientContext context;
  impl_->Prepare(context, call);
  const auto reader = impl_->stub->GenerateStream(&context, request);
  pb::GenerateChunk chunk;
  while (reader->Read(&chunk)) {
    if (!on_chunk(chunk)) context.TryCancel();
  }
  const grpc::Status status = reader->Finish();
  if (call.cancel != nullptr) call.cancel->Detach();
  return FromGrpc(status);
}

absl::StatusOr<pb::TokenizeResponse> Client::Tokenize(
    const pb::TokenizeRequest& request, const CallOptions& call) {
  return impl_->Unary<pb::TokenizeResponse>(
      call, [&](grpc::ClientContext* context, pb::TokenizeResponse* response) {
        return impl_->stub->Tokenize(context, request, response);
      });
}

absl::StatusOr<pb::DetokenizeResponse> Client::Detokenize(
    const pb::DetokenizeRequest& request, const CallOptions& call) {
  return impl_->Unary<pb::DetokenizeResponse>(
      call,
      [&](grpc::ClientContext* context, pb::DetokenizeResponse* response) {
        return impl_->stub->Detokenize(context, request, response);
      });
}

absl::StatusOr<pb::ModelInfoResponse> Client::ModelInfo(
    const pb::ModelInfoRequest& request, const CallOptions& call) {
  return impl_->Unary<pb::ModelInfoResponse>(
      call, [&](grpc::ClientContext* context, pb::ModelInfoResponse* response) {
        return impl_->stub->ModelInfo(context, request, response);
      });
}

absl::StatusOr<pb::GetLoadResponse> Client::GetLoad(const CallOptions& call) {
  return impl_->Unary<pb::GetLoadResponse>(
      call, [&](grpc::ClientContext* context, pb::GetLoadResponse* response) {
        return impl_->stub->GetLoad(context, {}, response);
      });
}

absl::StatusOr<std::string> Client::CheckHealth(const std::string& service,
                                                const CallOptions& call) {
  return impl_->Unary<std::string>(
      call, [&](grpc::ClientContext* context, std::string* state) {
        return HealthCheck(impl_->channel, service, context, state);
      });
}

std::string StatusText(const absl::Status& status) {
  return absl::StrCat(absl::StatusCodeToString(status.code()), ": ",
                      status.message());
}

}  // namespace kf::tools
