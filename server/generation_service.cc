#include "server/generation_service.h"

#include <utility>

#include "kernels/core/status.h"
#include "server/call.h"
#include "server/model_info.h"
#include "server/security.h"
#include "server/stream_call.h"
#include "server/unary_call.h"
#include "server/wire.h"

namespace kf::server {
namespace {

// A stream that is over before it begins.
class RefusedStream final : public grpc::ServerWriteReactor<grpc::ByteBuffer> {
 public:
  explicit RefusedStream(grpc::Status status) { Finish(std::move(status)); }
  void OnDone() override { delete this; }  // gRPC owned it until now
};

}  // namespace

GenerationService::GenerationService(std::string model_name,
                                     TokenFile* tokens,
                                     Metrics& metrics,
                                     RpcTracker& tracker)
    : model_name_(std::move(model_name)),
      tokens_(tokens),
      metrics_(metrics),
      tracker_(tracker) {}

GenerationService::~GenerationService() = default;

void GenerationService::SetReady(engine::Engine& engine) {
  KF_CHECK(owned_ == nullptr);
  owned_ = std::make_unique<const Serving>(
      Serving{engine, MakeConvertContext(engine.tokenizer(), model_name_,
                                         engine.config().context_tokens,
                                         engine.options().default_cache)});
  serving_.store(owned_.get(), std::memory_order_release);
}

absl::StatusOr<const GenerationService::Serving*> GenerationService::Enter(
    const grpc::CallbackServerContext& context,
    const grpc::ByteBuffer& bytes,
    google::protobuf::Message* request) const {
  KF_RETURN_IF_ERROR(CheckToken(tokens_, context.client_metadata()));
  const Serving* serving = serving_.load(std::memory_order_acquire);
  if (serving == nullptr) return absl::UnavailableError("loading the model");
  grpc::Slice slice;
  if (!bytes.DumpToSingleSlice(&slice).ok()) {
    return absl::InvalidArgumentError("request: cannot be decompressed");
  }
  KF_RETURN_IF_ERROR(ParseMessage(
      {reinterpret_cast<const char*>(slice.begin()), slice.size()}, request));
  return serving;
}

absl::StatusOr<engine::Request> GenerationService::EnterGenerate(
    const grpc::CallbackServerContext& context,
    const grpc::ByteBuffer& bytes,
    const Serving** serving,
    std::string* request_id) {
  v1::GenerateRequest proto;
  auto entered = Enter(context, bytes, &proto);
  absl::StatusOr<engine::Request> request =
      entered.ok() ? ToEngineRequest(proto, (*entered)->convert)
                   : entered.status();
  if (!request.ok()) {
    metrics_.OnRefused(request.status().code());
    return request;
  }
  request->deadline = DeadlineOf(context);
  *serving = *entered;
  *request_id = proto.request_id();
  return request;
}

grpc::ServerUnaryReactor* GenerationService::Generate(
    grpc::CallbackServerContext* context,
    const grpc::ByteBuffer* request,
    grpc::ByteBuffer* response) {
  RpcTracker::Hold hold(tracker_);
  const Serving* serving = nullptr;
  std::string request_id;
  auto translated = EnterGenerate(*context, *request, &serving, &request_id);
  if (!translated.ok()) {
    grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
    reactor->Finish(Final(translated.status(), *context));
    return reactor;
  }
  return UnaryCall::Start(
      {context, serving->engine, std::move(request_id), std::move(hold)},
      *std::move(translated), response);
}

grpc::ServerWriteReactor<grpc::ByteBuffer>* GenerationService::GenerateStream(
    grpc::CallbackServerContext* context, const grpc::ByteBuffer* request) {
  RpcTracker::Hold hold(tracker_);
  const Serving* serving = nullptr;
  std::string request_id;
  auto translated = EnterGenerate(*context, *request, &serving, &request_id);
  if (!translated.ok()) {
    return new RefusedStream(Final(translated.status(), *context));
  }
  return StreamCall::Start(
      {context, serving->engine, std::move(request_id), std::move(hold)},
      *std::move(translated));
}

template <typename Request, typename Response, typename Answer>
grpc::ServerUnaryReactor* GenerationService::AnswerNow(
    grpc::CallbackServerContext* context,
    const grpc::ByteBuffer& bytes,
    grpc::ByteBuffer* response,
    const Answer& answer) {
  const RpcTracker::Hold hold(tracker_);
  Request request;
  Response reply;
  auto serving = Enter(*context, bytes, &request);
  const absl::Status status =
      serving.ok() ? answer(**serving, request, &reply) : serving.status();
  if (status.ok()) *response = Serialize(reply);
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  reactor->Finish(Final(status, *context));
  return reactor;
}

grpc::ServerUnaryReactor* GenerationService::Tokenize(
    grpc::CallbackServerContext* context,
    const grpc::ByteBuffer* request,
    grpc::ByteBuffer* response) {
  return AnswerNow<v1::TokenizeRequest, v1::TokenizeResponse>(
      context, *request, response,
      [](const Serving& serving, const auto& in, auto* out) {
        return FillTokenize(serving.convert, in, out);
      });
}

grpc::ServerUnaryReactor* GenerationService::Detokenize(
    grpc::CallbackServerContext* context,
    const grpc::ByteBuffer* request,
    grpc::ByteBuffer* response) {
  return AnswerNow<v1::DetokenizeRequest, v1::DetokenizeResponse>(
      context, *request, response,
      [](const Serving& serving, const auto& in, auto* out) {
        return FillDetokenize(serving.convert, in, out);
      });
}

grpc::ServerUnaryReactor* GenerationService::ModelInfo(
    grpc::CallbackServerContext* context,
    const grpc::ByteBuffer* request,
    grpc::ByteBuffer* response) {
  return AnswerNow<v1::ModelInfoRequest, v1::ModelInfoResponse>(
      context, *request, response,
      [](const Serving& serving, const auto& in, auto* out) {
        return FillModelInfo(serving.engine, serving.convert, in, out);
      });
}

grpc::ServerUnaryReactor* GenerationService::GetLoad(
    grpc::CallbackServerContext* context,
    const grpc::ByteBuffer* request,
    grpc::ByteBuffer* response) {
  return AnswerNow<v1::GetLoadRequest, v1::GetLoadResponse>(
      context, *request, response,
      [](const Serving& serving, const auto& /*in*/, auto* out) {
        FillLoad(serving.engine.Stats(), out);
        return absl::OkStatus();
      });
}

}  // namespace kf::server
