// What the engine answers, as wire messages. Free of gRPC; thread-safe.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "engine/request.h"
#include "engine/tokenizer/tokenizer.h"
#include "keyformer/v1/generation.pb.h"

namespace kf::server {

// Joins `next`, which follows `pending` in the same sequence, onto it: deltas
// add up, the newer usage wins.
void MergeUpdate(engine::Update next, engine::Update* pending);

// Whether the update says what the request has used: no prompt is empty.
inline bool HasUsage(const engine::Update& update) {
  return update.usage.prompt_tokens > 0;
}

// The request that is answered.
struct ResponseContext {
  const std::string& request_id;
  const engine::Tokenizer& tokenizer;
  engine::CacheReportDetail report = engine::CacheReportDetail::kNone;
};

::keyformer::v1::GenerateChunk ToChunk(const engine::Update& update,
                                       const ResponseContext& context);

// `sequences` are the request's, each merged from its first update to its
// last, in the order of their last; they are answered in the order of index.
::keyformer::v1::GenerateResponse ToResponse(
    const std::vector<engine::Update>& sequences,
    const ResponseContext& context);

}  // namespace kf::server
