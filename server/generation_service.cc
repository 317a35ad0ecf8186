#include "server/generation_service.h"

#include <optional>
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

// Requests of at most so many bytes are read where they arrive: a millisecond
// or so of encoding. Longer ones are the worker's.
constexpr size_t kShortRequestBytes = size_t{64} << 10;
constexpr int kWorkerThreads = 2;
// Long ones that wait; each may hold max_message_bytes.
constexpr size_t kMaxLongRequests = 64;

// A stream that is over before it begins.
class RefusedStream final : public grpc::ServerWriteReactor<grpc::ByteBuffer> {
 public:
  explicit RefusedStream(grpc::Status status) { Finish(std::move(status)); }
  void OnDone() override { delete this; }  // gRPC owned it until now
};

// Counts as long as its answer is not read.
class HeldReactor final : public grpc::ServerUnaryReactor {
 public:
  explicit HeldReactor(RpcTracker::Hold hold) : hold_(std::move(hold)) {}
  void OnDone() override { delete this; }  // gRPC owned it until now

 private:
  const RpcTracker::Hold hold_;
};

absl::Status Parse(const grpc::ByteBuffer& bytes,
                   google::protobuf::Message* request) {
  grpc::Slice slice;
  if (!bytes.DumpToSingleSlice(&slice).ok()) {
    return absl::InvalidArgumentError("request: cannot be read");
  }
  return ParseMessage(
      {reinterpret_cast<const char*>(slice.begin()), slice.size()}, request);
}

}  // namespace

GenerationService::GenerationService(std::string model_name,
                                     const RequestRules& rules,
                                     TokenFile* tokens,
                                     Metrics& metrics,
                                     RpcTracker& tracker)
    : model_name_(std::move(model_name)),
      rules_(rules),
      tokens_(tokens),
      metrics_(metrics),
      tracker_(tracker),
      worker_(kWorkerThreads, kMaxLongRequests) {}

GenerationService::~GenerationService() = default;

absl::Status GenerationService::SetReady(engine::Engine& engine) {
  KF_CHECK(owned_ == nullptr);
  KF_ASSIGN_OR_RETURN(
      CacheOffer offer,
      MakeCacheOffer(engine.options().default_cache, engine.layer_profiles(),
                     rules_.layer_profile, rules_.policies));
  ConvertContext convert = MakeConvertContext(engine.tokenizer(), model_name_,
                                              engine.config().context_tokens,
                                              std::move(offer), rules_);
  convert.report = {
      .kv_heads = engine.config().kv_heads,
      .request = {.vocabulary = convert.vocabulary,
                  .context_tokens = convert.context_tokens,
                  .layers = engine.config().layers,
                  .default_max_new_tokens =
                      engine.options().default_max_new_tokens,
                  .max_top_logprobs = engine.options().max_top_logprobs},
      .max_bytes = rules_.max_report_bytes};
  owned_ = std::make_unique<const Serving>(Serving{engine, std::move(convert)});
  serving_.store(owned_.get(), std::memory_order_release);
  return absl::OkStatus();
}

absl::StatusOr<GenerationService::Entered> GenerationService::Enter(
    const grpc::CallbackServerContext& context) const {
  KF_RETURN_IF_ERROR(CheckToken(tokens_, context.client_metadata()));
  const Serving* serving = serving_.load(std::memory_order_acquire);
  if (serving == nullptr) return absl::UnavailableError("loading the model");
  std::optional<RpcTracker::Hold> hold = tracker_.TryHold();
  if (!hold.has_value()) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "the server is full: ", tracker_.limit(),
        " RPCs are not finished, answers that nobody reads included"));
  }
  return Entered{*serving, *std::move(hold)};
}

absl::Status GenerationService::Dispatch(size_t bytes,
                                         std::function<void()> work) {
  if (bytes <= kShortRequestBytes) {
    work();
    return absl::OkStatus();
  }
  if (worker_.Post(std::move(work))) return absl::OkStatus();
  return absl::ResourceExhaustedError(
      absl::StrCat("the queue is full: ", kMaxLongRequests, " requests above ",
                   kShortRequestBytes, " bytes wait"));
}

void GenerationService::Begin(const grpc::ByteBuffer& bytes,
                              const Serving& serving,
                              const grpc::CallbackServerContext& context,
                              const std::shared_ptr<GenerateCall>& call) {
  const absl::Status status =
      Dispatch(bytes.Length(), [this, bytes, &serving, &context, call] {
        v1::GenerateRequest proto;
        const absl::Status parsed = Parse(bytes, &proto);
        absl::StatusOr<engine::Request> request =
            parsed.ok() ? ToEngineRequest(proto, serving.convert) : parsed;
        if (request.ok()) {
          request->deadline = DeadlineOf(context);
        } else {
          metrics_.OnRefused(request.status().code());
        }
        call->Submit(proto.request_id(), std::move(request));
      });
  if (status.ok()) return;
  metrics_.OnRefused(status.code());
  call->Submit("", status);
}

grpc::ServerUnaryReactor* GenerationService::Generate(
    grpc::CallbackServerContext* context,
    const grpc::ByteBuffer* request,
    grpc::ByteBuffer* response) {
  auto entered = Enter(*context);
  if (!entered.ok()) {
    metrics_.OnRefused(entered.status().code());
    grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
    reactor->Finish(Final(entered.status(), *context));
    return reactor;
  }
  const Serving& serving = entered->serving;
  const auto call = StartCall<UnaryCall>(
      Call{context, serving.engine, worker_, std::move(entered->hold)},
      response);
  Begin(*request, serving, *context, call);
  return call.get();
}

grpc::ServerWriteReactor<grpc::ByteBuffer>* GenerationService::GenerateStream(
    grpc::CallbackServerContext* context, const grpc::ByteBuffer* request) {
  auto entered = Enter(*context);
  if (!entered.ok()) {
    metrics_.OnRefused(entered.status().code());
    return new RefusedStream(Final(entered.status(), *context));
  }
  const Serving& serving = entered->serving;
  const auto call = StartCall<StreamCall>(
      Call{context, serving.engine, worker_, std::move(entered->hold)});
  Begin(*request, serving, *context, call);
  return call.get();
}

template <typename Request, typename Response, typename Fill>
grpc::ServerUnaryReactor* GenerationService::Answer(
    grpc::CallbackServerContext* context,
    const grpc::ByteBuffer& bytes,
    grpc::ByteBuffer* response,
    Fill fill) {
  auto entered = Enter(*context);
  if (!entered.ok()) {
    grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
    reactor->Finish(Final(entered.status(), *context));
    return reactor;
  }
  const Serving& serving = entered->serving;
  auto* reactor = new HeldReactor(std::move(entered->hold));
  const absl::Status dispatched = Dispatch(
      bytes.Length(), [bytes, &serving, context, response, reactor, fill] {
        Request request;
        Response reply;
        absl::Status status = Parse(bytes, &request);
        if (status.ok()) status = fill(serving, request, &reply);
        if (status.ok()) {
          auto serialized = Serialize(reply);
          status = serialized.status();
          if (status.ok()) *response = *std::move(serialized);
        }
        reactor->Finish(Final(status, *context));
      });
  if (!dispatched.ok()) reactor->Finish(Final(dispatched, *context));
  return reactor;
}

grpc::ServerUnaryReactor* GenerationService::Tokenize(
    grpc::CallbackServerContext* context,
    const grpc::ByteBuffer* request,
    grpc::ByteBuffer* response) {
  return Answer<v1::TokenizeRequest, v1::TokenizeResponse>(
      context, *request, response,
      [](const Serving& serving, const auto& in, auto* out) {
        return FillTokenize(serving.convert, in, out);
      });
}

grpc::ServerUnaryReactor* GenerationService::Detokenize(
    grpc::CallbackServerContext* context,
    const grpc::ByteBuffer* request,
    grpc::ByteBuffer* response) {
  return Answer<v1::DetokenizeRequest, v1::DetokenizeResponse>(
      context, *request, response,
      [](const Serving& serving, const auto& in, auto* out) {
        return FillDetokenize(serving.convert, in, out);
      });
}

grpc::ServerUnaryReactor* GenerationService::ModelInfo(
    grpc::CallbackServerContext* context,
    const grpc::ByteBuffer* request,
    grpc::ByteBuffer* response) {
  return Answer<v1::ModelInfoRequest, v1::ModelInfoResponse>(
      context, *request, response,
      [](const Serving& serving, const auto& in, auto* out) {
        return FillModelInfo(serving.engine, serving.convert, in, out);
      });
}

grpc::ServerUnaryReactor* GenerationService::GetLoad(
    grpc::CallbackServerContext* context,
    const grpc::ByteBuffer* request,
    grpc::ByteBuffer* response) {
  return Answer<v1::GetLoadRequest, v1::GetLoadResponse>(
      context, *request, response,
      [](const Serving& serving, const auto& /*in*/, auto* out) {
        FillLoad(serving.engine.Stats(), out);
        return absl::OkStatus();
      });
}

}  // namespace kf::server
