// What the engine answers, as wire messages. Free of gRPC; thread-safe.
#pragma once

#include <string>

#include "engine/request.h"
#include "engine/tokenizer/tokenizer.h"
#include "keyformer/v1/generation.pb.h"

namespace kf::server {

// Joins `next`, which follows `pending` in the same request, onto it: deltas
// add up, the newer usage wins.
void MergeUpdate(engine::Update next, engine::Update* pending);

::keyformer::v1::GenerateChunk ToChunk(const engine::Update& update,
                                       const std::string& request_id,
                                       const engine::Tokenizer& tokenizer);

// `update` is a request's updates merged from the first to the last.
::keyformer::v1::GenerateResponse ToResponse(
    const engine::Update& update,
    const std::string& request_id,
    const engine::Tokenizer& tokenizer);

}  // namespace kf::server
