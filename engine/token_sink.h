// Where a request's results go; the server implements it.
#pragma once

#include "absl/status/status.h"
#include "engine/request.h"

namespace kf::engine {

// Called on the engine thread: returns at once, never blocks, never calls back
// into the engine. Calls for one request come in order: OnUpdate any number of
// times, then OnEnd exactly once, after which the engine holds no reference.
class TokenSink {
 public:
  virtual ~TokenSink() = default;
  virtual void OnUpdate(Update update) = 0;
  // OK after an update with a finish reason. Otherwise why the request ended
  // without one: kCancelled, kDeadlineExceeded, kUnavailable (drained),
  // kInternal.
  virtual void OnEnd(const absl::Status& status) = 0;
};

}  // namespace kf::engine
