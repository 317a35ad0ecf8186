// Every metric the server exports: name, unit, labels and buckets. All label
// sets exist from the start, so a rate is right from the first event on.
#pragma once

#include <array>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "engine/engine.h"
#include "engine/observer.h"

namespace kf::server {

// Thread-safe. Calls return at once: a counter or a histogram bucket each.
class Metrics final : public engine::EngineObserver {
 public:
  Metrics();
  ~Metrics() override;

  // A request that ended before the engine saw it: malformed, unauthorised,
  // another model, still loading. Counts as received and rejected.
  void OnRefused(absl::StatusCode code);

  // The text exposition format. Gauges come from `stats`; null (no engine yet):
  // they stay as they were, zero at first. The counts of requests are those of
  // one moment: received = rejected + success + failed + cancelled + running +
  // waiting, whatever happens meanwhile; so what waits is what is left over.
  std::string Render(const engine::EngineStats* stats);

  void OnReceived() override;
  void OnRejected(engine::RejectReason reason) override;
  void OnAdmitted(double queue_seconds,
                  uint32_t prompt_tokens,
                  uint32_t cache_budget_tokens) override;
  void OnGenerated(uint32_t tokens) override;
  void OnFirstToken(double seconds_since_arrival) override;
  void OnToken(double seconds_since_last_token) override;
  void OnEvicted(uint32_t tokens) override;
  void OnPreempted() override;
  void OnStep(const engine::StepReport& report) override;
  void OnSucceeded(engine::FinishReason reason,
                   const engine::Usage& usage,
                   double e2e_seconds) override;
  void OnCancelled() override;
  void OnFailed(absl::StatusCode code) override;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace kf::server
