// The service of generation.proto: check, translate, hand on. Thin on purpose.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <string>

#include "engine/engine.h"
#include "keyformer/v1/generation.grpc.pb.h"
#include "server/auth.h"
#include "server/convert.h"
#include "server/generate_call.h"
#include "server/metrics.h"
#include "server/rpc_tracker.h"
#include "server/worker.h"

namespace kf::server {

// Requests arrive as raw bytes: gRPC's own parser would answer a string that is
// not UTF-8, or garbage, with INTERNAL and no word about the field.
using RawService = v1::GenerationService::WithRawCallbackMethod_Generate<
    v1::GenerationService::WithRawCallbackMethod_GenerateStream<
        v1::GenerationService::WithRawCallbackMethod_Tokenize<
            v1::GenerationService::WithRawCallbackMethod_Detokenize<
                v1::GenerationService::WithRawCallbackMethod_ModelInfo<
                    v1::GenerationService::WithRawCallbackMethod_GetLoad<
                        v1::GenerationService::Service>>>>>>;

// Thread-safe. Until SetReady every RPC answers UNAVAILABLE "loading".
class GenerationService final : public RawService {
 public:
  // `tokens` may be null: everyone is let in. All outlive the service.
  GenerationService(std::string model_name,
                    const RequestRules& rules,
                    TokenFile* tokens,
                    Metrics& metrics,
                    RpcTracker& tracker);
  ~GenerationService() override;

  // Once. The engine outlives every RPC. kInvalidArgument, naming the flag: the
  // defaults of a request do not go with the model.
  absl::Status SetReady(engine::Engine& engine);

  grpc::ServerUnaryReactor* Generate(grpc::CallbackServerContext* context,
                                     const grpc::ByteBuffer* request,
                                     grpc::ByteBuffer* response) override;
  grpc::ServerWriteReactor<grpc::ByteBuffer>* GenerateStream(
      grpc::CallbackServerContext* context,
      const grpc::ByteBuffer* request) override;
  grpc::ServerUnaryReactor* Tokenize(grpc::CallbackServerContext* context,
                                     const grpc::ByteBuffer* request,
                                     grpc::ByteBuffer* response) override;
  grpc::ServerUnaryReactor* Detokenize(grpc::CallbackServerContext* context,
                                       const grpc::ByteBuffer* request,
                                       grpc::ByteBuffer* response) override;
  grpc::ServerUnaryReactor* ModelInfo(grpc::CallbackServerContext* context,
                                      const grpc::ByteBuffer* request,
                                      grpc::ByteBuffer* response) override;
  grpc::ServerUnaryReactor* GetLoad(grpc::CallbackServerContext* context,
                                    const grpc::ByteBuffer* request,
                                    grpc::ByteBuffer* response) override;

 private:
  struct Serving {
    engine::Engine& engine;
    ConvertContext convert;
  };

  struct Entered {
    const Serving& serving;  // valid as long as the service
    RpcTracker::Hold hold;
  };

  // Lets the caller in: its token, the model, room for one more RPC.
  absl::StatusOr<Entered> Enter(
      const grpc::CallbackServerContext& context) const;

  // Does `work` for a request of `bytes` now, or has the worker do it.
  // kResourceExhausted: it has enough.
  absl::Status Dispatch(size_t bytes, std::function<void()> work);

  // Translates the request and submits it to `call`, counting a refusal.
  void Begin(const grpc::ByteBuffer& bytes,
             const Serving& serving,
             const grpc::CallbackServerContext& context,
             const std::shared_ptr<GenerateCall>& call);

  // An RPC that the engine's thread has no part in: `fill(serving, request,
  // &response)` answers it.
  template <typename Request, typename Response, typename Fill>
  grpc::ServerUnaryReactor* Answer(grpc::CallbackServerContext* context,
                                   const grpc::ByteBuffer& bytes,
                                   grpc::ByteBuffer* response,
                                   Fill fill);

  const std::string model_name_;
  const RequestRules rules_;
  TokenFile* const tokens_;
  Metrics& metrics_;
  RpcTracker& tracker_;
  std::unique_ptr<const Serving> owned_;           // written once, by SetReady
  std::atomic<const Serving*> serving_ = nullptr;  // null: loading
  Worker worker_;  // its tasks use the rest, so it goes first
};

}  // namespace kf::server
