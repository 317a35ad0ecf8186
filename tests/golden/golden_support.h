// What the end-to-end checks of the engine share: requests in, outcomes out,
// and the vectors of cases.json.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "engine/engine.h"
#include "kernels/core/mutex.h"
#include "tests/testing/tiny_model.h"

namespace kf::testing {

// All that one request brought back.
struct Outcome {
  absl::Status status;
  std::string text;
  std::vector<engine::TokenId> tokens;
  std::vector<double> logprobs;
  engine::FinishReason finish_reason = engine::FinishReason::kNotFinished;
  engine::Usage usage;
  engine::CacheReport report;  // empty unless it was asked for
};

// Thread-safe.
class CollectingSink final : public engine::TokenSink {
 public:
  void OnUpdate(engine::Update update) override;
  void OnEnd(const absl::Status& status) override;

  // Blocks until the request has ended; kDeadlineExceeded after minutes, so
  // that a hanging engine fails the test instead of stopping it.
  Outcome Wait();
  // Blocks until `count` tokens have come, or the request has ended.
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
  std::string simd = "auto";
  int threads = 2;
  uint64_t kv_pool_bytes = uint64_t{256} << 20;
  engine::EngineObserver* observer = nullptr;
  std::unique_ptr<Backend> backend = nullptr;  // null: the CPU
};

// Throws with the status where the engine cannot be made.
std::unique_ptr<engine::Engine> MakeEngine(EngineSetup setup);

// All at once, in one engine: they share its batches.
std::vector<Outcome> RunTogether(engine::Engine& engine,
                                 const std::vector<engine::Request>& requests);

struct GoldenCase {
  std::string name;
  size_t model = 0;
  engine::Request request;  // asks for logprobs and the cache report
  int32_t budget = 0;       // k
  std::vector<engine::TokenId> tokens;
  std::vector<double> logprobs;
  // [layers][kv heads]: ascending positions.
  using Kept = std::vector<std::vector<std::vector<int32_t>>>;
  Kept kept_after_prompt;
  Kept kept_at_end;
};

struct GoldenFile {
  std::vector<TinyModelSpec> models;
  std::vector<uint64_t> model_fnv1a;  // of each file's bytes
  std::vector<GoldenCase> cases;
  size_t evicting_much = 0;
};

// Throws on a malformed file.
GoldenFile LoadGolden();

uint64_t Fnv1a(std::string_view bytes);

// Empty, or the first difference between what came and what the oracle says:
// tokens and kept positions exactly, logprobs within kLogprobTolerance.
std::string Difference(const GoldenCase& want, const Outcome& got);

inline constexpr double kLogprobTolerance = 1e-4;

}  // namespace kf::testing
