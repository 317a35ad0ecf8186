// The answers of ModelInfo, GetLoad, Tokenize and Detokenize. Free of gRPC.
#pragma once

#include "absl/status/status.h"
#include "engine/engine.h"
#include "keyformer/v1/generation.pb.h"
#include "server/convert.h"

namespace kf::server {

absl::Status FillModelInfo(const engine::Engine& engine,
                           const ConvertContext& context,
                           const v1::ModelInfoRequest& request,
                           v1::ModelInfoResponse* response);

void FillLoad(const engine::EngineStats& stats, v1::GetLoadResponse* response);

absl::Status FillTokenize(const ConvertContext& context,
                          const v1::TokenizeRequest& request,
                          v1::TokenizeResponse* response);

absl::Status FillDetokenize(const ConvertContext& context,
                            const v1::DetokenizeRequest& request,
                            v1::DetokenizeResponse* response);

}  // namespace kf::server
