#include "server/generate_call.h"

namespace kf::server {

GenerateCall::GenerateCall(Call call)
    : rpc_(std::move(call)), ticket_(rpc_.engine) {}

void GenerateCall::Submit(std::string request_id,
                          absl::StatusOr<engine::Request> request) {
  rpc_.request_id = std::move(request_id);
  if (!request.ok()) return OnEnd(request.status());
  report_ = request->cache_report;
  const bool beams = request->beam.has_value();
  Expect(beams ? request->beam->width : request->samples, beams);
  const auto id = rpc_.engine.Submit(*std::move(request), shared_from_this());
  if (!id.ok()) return OnEnd(id.status());
  ticket_.SetId(*id);
}

ResponseContext GenerateCall::response_context() const {
  return {.request_id = rpc_.request_id,
          .tokenizer = rpc_.engine.tokenizer(),
          .report = report_};
}

}  // namespace kf::server
