// What the engine tells a metrics system. Called on the engine thread (but
// OnReceived and OnRejected: any thread); must return at once.
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "engine/request.h"

namespace kf::engine {

enum class RejectReason : uint8_t {
  kInvalid,    // INVALID_ARGUMENT
  kQueueFull,  // RESOURCE_EXHAUSTED
  kNeverFits,  // FAILED_PRECONDITION
  kDraining,   // UNAVAILABLE
};

// Seconds are the engine thread's: of an asynchronous backend, until it
// answers.
struct StepReport {
  int32_t decode_rows = 0;    // sequences that fed a token
  int32_t prompt_tokens = 0;  // token-layers of prefill / L, rounded
  bool prefilled = false;     // prompts, or replays, were worked on
  double seconds = 0.0;       // all of the step
  double decode_seconds = 0.0;
  double attention_seconds = 0.0;  // of decode_seconds
  double sampling_seconds = 0.0;   // of decode_seconds: from logits to tokens
  double prefill_seconds = 0.0;
  double replay_seconds = 0.0;
};

class EngineObserver {
 public:
  virtual ~EngineObserver() = default;
  virtual void OnReceived() {}
  virtual void OnRejected(RejectReason) {}
  virtual void OnAdmitted(double /*queue_seconds*/,
                          uint32_t /*prompt_tokens*/,
                          uint32_t /*cache_budget_tokens*/) {}
  // Tokens chosen: one for each sequence of a step.
  virtual void OnGenerated(uint32_t /*tokens*/) {}
  // Of each sequence, as its tokens are sent; beams are sent whole, together.
  virtual void OnFirstToken(double /*seconds_since_arrival*/) {}
  virtual void OnToken(double /*seconds_since_last_token*/) {}
  virtual void OnEvicted(uint32_t /*tokens*/) {}
  // A running request lost its cache, and will be run again up to here.
  virtual void OnPreempted() {}
  virtual void OnStep(const StepReport&) {}
  // Exactly one of these ends each request that was not rejected.
  virtual void OnSucceeded(FinishReason, const Usage&, double /*e2e_seconds*/) {
  }
  virtual void OnCancelled() {}
  virtual void OnFailed(absl::StatusCode) {}
};

}  // namespace kf::engine
