// The service of generation.proto: check, translate, hand on. Thin on purpose.
#pragma once

#include <atomic>
#include <memory>
#include <string>

#include "engine/engine.h"
#include "keyformer/v1/generation.grpc.pb.h"
#include "server/auth.h"
#include "server/convert.h"
#include "server/metrics.h"
#include "server/rpc_tracker.h"

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
                    TokenFile* tokens,
                    Metrics& metrics,
                    RpcTracker& tracker);
  ~GenerationService() override;

  // Once. The engine outlives every RPC.
  void SetReady(engine::Engine& engine);

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

  // Lets the caller in and parses its message. The pointer is valid as long as
  // the service.
  absl::StatusOr<const Serving*> Enter(
      const grpc::CallbackServerContext& context,
      const grpc::ByteBuffer& bytes,
      google::protobuf::Message* request) const;

  // Enter and translate, counting a refusal.
  absl::StatusOr<engine::Request> EnterGenerate(
      const grpc::CallbackServerContext& context,
      const grpc::ByteBuffer& bytes,
      const Serving** serving,
      std::string* request_id);

  // An RPC that is answered on the spot by `answer(serving, request,
  // &response)`.
  template <typename Request, typename Response, typename Answer>
  grpc::ServerUnaryReactor* AnswerNow(grpc::CallbackServerContext* context,
                                      const grpc::ByteBuffer& bytes,
                                      grpc::ByteBuffer* response,
                                      const Answer& answer);

  const std::string model_name_;
  TokenFile* const tokens_;
  Metrics& metrics_;
  RpcTracker& tracker_;
  std::unique_ptr<const Serving> owned_;           // written once, by SetReady
  std::atomic<const Serving*> serving_ = nullptr;  // null: loading
};

}  // namespace kf::server
