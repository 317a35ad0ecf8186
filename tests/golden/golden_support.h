// What the end-to-end checks of the engine share: requests in, outcomes out.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "engine/engine.h"
#include "kernels/core/mutex.h"
#include "tests/testing/tiny_model.h"

namespace kf::testing {

// One of several samples or beams.
struct Answer {
  std::vector<engine::TokenId> tokens;
  std::vector<double> logprobs;
  double score = 0.0;  // of a beam
  engine::FinishReason finish_reason = engine::FinishReason::kNotFinished;
  engine::CacheReport report;  // empty unless it was asked for
};

// All that one request brought back; text, tokens, logprobs, the finish reason
// and the report are those of the sequence with index 0.
struct Outcome {
  absl::Status status;
  std::string text;
  std::vector<engine::TokenId> tokens;
  std::vector<double> logprobs;
  engine::FinishReason finish_reason = engine::FinishReason::kNotFinished;
  engine::Usage usage;
  engine::CacheReport report;
  std::vector<Answer> answers;  // by Update::index
};

// Thread-safe.
class CollectingSink final : public engine::TokenSink {
 public:
  void OnUpdate(engine::Update update) override;
  void OnEnd(const absl::Status& status) override;

  // Blocks until the request has ended; kDeadlineExceeded after minutes, so
  // that a hanging engine fails the test instead of stopping it.
  Outcome Wait();
  // Blocks until sequence 0 has `count` tokens, or the request has ended.
  void WaitForTokens(size_t count);

 private:
  Mutex mu_;
  CondVar changed_;
  bool ended_ KF_GUARDED_BY(mu_) = false;
  Outcome outcome_ KF_GUARDED_BY(mu_);
};

struct EngineSetup {
  std::string model_path;
  bool f32 = true;  // weights and cache; else both bf16
  std::optional<DType> cache_dtype = std::nullopt;  // or so
  std::string simd = "auto";
  int threads = 2;
  uint64_t kv_pool_bytes = uint64_t{256} << 20;
  int32_t prefill_slice_tokens = 256;
  engine::EngineObserver* observer = nullptr;
  std::unique_ptr<Backend> backend = nullptr;  // null: the CPU
};

// Throws with the status where the engine cannot be made.
std::unique_ptr<engine::Engine> MakeEngine(EngineSetup setup);

// All at once, in one engine: they share its batches.
std::vector<Outcome> RunTogether(engine::Engine& engine,
                                 const std::vector<engine::Request>& requests);

}  // namespace kf::testing
