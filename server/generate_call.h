// What Generate and GenerateStream share: how a call begins, how its client's
// end reaches the engine, and who keeps it alive.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "engine/token_sink.h"
#include "server/call.h"
#include "server/convert_response.h"
#include "server/engine_ticket.h"

namespace kf::server {

// Lives from StartCall until gRPC's OnDone and the engine's OnEnd have both
// come, in either order.
class GenerateCall : public engine::TokenSink,
                     public std::enable_shared_from_this<GenerateCall> {
 public:
  // Once. An error, or a refusal of the engine's, ends the call.
  void Submit(std::string request_id, absl::StatusOr<engine::Request> request);

 protected:
  explicit GenerateCall(Call call);
  // Before the engine is given the request: no update has come. `at_end`: all
  // come at the end, and may be fewer, as beams.
  virtual void Expect(uint32_t sequences, bool at_end) = 0;

  // The client has gone, or cannot be written to.
  void Cancel() { ticket_.Cancel(); }
  // gRPC's share, which its OnDone takes and drops last of all.
  std::shared_ptr<GenerateCall> TakeShare() { return std::move(self_); }
  ResponseContext response_context() const;

  Call rpc_;

 private:
  template <typename T, typename... Args>
  friend std::shared_ptr<T> StartCall(Args&&... args);

  EngineTicket ticket_;
  std::shared_ptr<GenerateCall> self_;
  // What the request asked for.
  engine::CacheReportDetail report_ = engine::CacheReportDetail::kNone;
};

// A call of type T, in which gRPC shares until OnDone.
template <typename T, typename... Args>
std::shared_ptr<T> StartCall(Args&&... args) {
  auto call = std::make_shared<T>(std::forward<Args>(args)...);
  call->self_ = call;
  return call;
}

}  // namespace kf::server
