// Engines over tiny models, and a sink that records what a request got.
#pragma once

#include <atomic>
#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "engine/clock.h"
#include "engine/engine.h"
#include "engine/request.h"
#include "engine/token_sink.h"
#include "kernels/core/mutex.h"
#include "tests/testing/temp_dir.h"
#include "tests/testing/tiny_model.h"

namespace kf::engine {

// A guard against a hang, not a measure of speed.
inline constexpr std::chrono::seconds kPatience{120};

// What came back of one sequence, as one. The prompt's part is in the outcome
// of the first update.
struct Outcome {
  std::string text;
  std::vector<TokenId> tokens;
  std::vector<TokenLogprob> logprobs;
  std::vector<TokenLogprob> prompt_logprobs;
  FinishReason finish_reason = FinishReason::kNotFinished;
  std::string stop_string;
  double score = 0.0;
  Usage first_usage;
  Usage usage;
  uint64_t seed = 0;
  uint64_t noise_seed = 0;
  std::optional<CacheReport> cache_report;
  int firsts = 0;   // updates marked first
  int updates = 0;  // in all
  absl::Status status;
};

// Equal bits: tokens, text, end, and every logprob.
bool SameAnswer(const Outcome& a, const Outcome& b);
// Equal positions and scores.
bool SameCaches(const CacheState& a, const CacheState& b);

class RecordingSink final : public TokenSink {
 public:
  void OnUpdate(Update update) override;
  void OnEnd(const absl::Status& status) override;

  // Until OnEnd, or until `updates` of them have come. A time-out is a failure
  // with a message, and returns what there is: of the first sequence, or of all
  // by index.
  Outcome Wait();
  std::vector<Outcome> WaitAll();
  void WaitForUpdates(int updates);
  // Of the last update.
  Usage last_usage() const;
  bool ended() const;

 private:
  mutable Mutex mu_;
  CondVar changed_;
  std::vector<Outcome> outcomes_ KF_GUARDED_BY(mu_);
  int updates_ KF_GUARDED_BY(mu_) = 0;
  Usage last_usage_ KF_GUARDED_BY(mu_);
  absl::Status status_ KF_GUARDED_BY(mu_);
  bool ended_ KF_GUARDED_BY(mu_) = false;
};

// Small, exact and fast: f32 throughout unless a test says otherwise.
EngineOptions TinyOptions(const std::string& model_path);
// A tiny model of the harness' own, on a backend, in f32 or bf16.
EngineOptions TinyOptionsOn(const std::string& backend, WeightFormat format);

// Time that stands still until it is moved. Thread-safe.
class FakeClock final : public Clock {
 public:
  TimePoint Now() const override {
    return TimePoint(Duration(now_ns_.load())) + std::chrono::hours(1);
  }
  void Advance(Duration by) { now_ns_ += by.count(); }

 private:
  std::atomic<int64_t> now_ns_{0};
};

// Holds the engine thread inside a step until it is opened.
class Gate {
 public:
  void Pass();
  // A time-out is a failure with a message.
  void WaitUntilReached();
  void Open();

 private:
  Mutex mu_;
  CondVar changed_;
  bool waiting_ KF_GUARDED_BY(mu_) = false;
  bool open_ KF_GUARDED_BY(mu_) = false;
};

struct TestEngineParts {
  testing::TinyModelSpec spec = {};
  EngineOptions options = TinyOptions("");     // no path: a model of `spec`
  std::unique_ptr<Backend> backend = nullptr;  // null: options.backend
  EngineObserver* observer = nullptr;
  const Clock* clock = nullptr;  // null: a steady one
};

// Creation errors fail the test.
class TestEngine {
 public:
  explicit TestEngine(TestEngineParts parts = {});

  Engine& operator*() { return *engine_; }
  Engine* operator->() { return engine_.get(); }

  // Submits, and must succeed.
  std::pair<RequestId, std::shared_ptr<RecordingSink>> Start(Request request);
  Outcome Run(Request request);
  std::vector<Outcome> RunAll(Request request);
  // Every page free, nothing waiting or running.
  void ExpectNothingHeld();

 private:
  testing::TempDir dir_;
  SteadyClock clock_;
  std::unique_ptr<Engine> engine_;
};

// `tokens` pseudo-random bytes as a prompt, and T; FULL.
Request MakeRequest(uint32_t seed, int32_t tokens, uint32_t max_new_tokens);
// The same under KEYFORMER with budget k and window w.
Request MakeKeyformerRequest(uint32_t seed,
                             int32_t tokens,
                             uint32_t max_new_tokens,
                             uint32_t budget,
                             uint32_t recent);

}  // namespace kf::engine
