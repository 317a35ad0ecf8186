// Runs requests against one model: submit from any thread, results through a
// TokenSink. One engine thread owns all sequences and caches.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/cache/layer_profile.h"
#include "engine/clock.h"
#include "engine/model/model_config.h"
#include "engine/observer.h"
#include "engine/request.h"
#include "engine/token_sink.h"
#include "engine/tokenizer/tokenizer.h"
#include "kernels/backend.h"

namespace kf::engine {

inline constexpr int32_t kMaxBatch = 4096;

// Where weights come from.
enum class LoadFormat : uint8_t {
  kGguf,   // the file model_path
  kDummy,  // random numbers, of the shape model_config (model/dummy_model.h)
};

struct EngineOptions {
  std::string model_path;  // empty with kDummy
  LoadFormat load_format = LoadFormat::kGguf;
  std::string model_config;  // with kDummy: a preset or a file; else empty
  // Absent: AutoWeightFormat's choice, which Engine::options() then holds.
  std::optional<WeightFormat> weight_format = WeightFormat::kBF16;
  DType cache_dtype = DType::kBF16;  // kF32, kBF16, or kI8 on the CPU
  BackendOptions backend;
  // 0: a quarter of the host's available memory; of a device's own memory, what
  // gpu_memory_share of it leaves beside weights and workspaces.
  uint64_t kv_pool_bytes = 0;
  double gpu_memory_share = 0.9;         // (0, 1]
  int32_t max_batch = 64;                // sequences running, [1, 4096]
  int32_t max_queue_requests = 1024;     // waiting, >= 1
  int64_t max_queue_tokens = 1 << 20;    // prompt tokens waiting, >= 1
  int32_t max_skips = 16;                // see SchedulerLimits, >= 0
  int32_t prefill_workspace_tokens = 0;  // prompts in flight; 0: the context
  int32_t prefill_slice_tokens = 256;    // token-layers / L per step, >= 32
  // Of a step's prompt work beside streams, about, where the backend works in
  // the call; 0: only prefill_slice_tokens bounds it. >= 0.
  int32_t prefill_slice_ms = 0;
  uint32_t default_max_new_tokens = 256;
  uint32_t max_top_logprobs = 64;
  CacheOptions default_cache;  // for ModelInfo; requests come filled
  // Empty: LayerProfilesPath(model_path), if there is such a file.
  std::string layer_profiles_path;
};

// As --cache_dtype has it: "f32", "bf16" or "q8".
std::string_view CacheTypeName(DType cache_dtype);

// kInvalidArgument: one rule per field; the message names the field by its
// flag.
absl::Status ValidateOptions(const EngineOptions& options);

struct EngineStats {
  int32_t running = 0;  // admitted: in prefill or decoding
  int32_t waiting = 0;  // the preempted ones included
  int64_t waiting_prompt_tokens = 0;
  int64_t pages_total = 0;
  int64_t pages_free = 0;
  int64_t physical_cache_tokens = 0;  // token slots owned, mean over layers
  int64_t logical_cache_tokens = 0;   // tokens seen by running sequences
  double generation_tokens_per_second = 0.0;  // over the last few seconds
  bool draining = false;
};

class Engine {
 public:
  // Opens and loads the model, allocates the pool, starts the thread, and runs
  // one warm-up pass. Errors name the file, key or flag. `observer` may be
  // null; `clock` and `observer` outlive the engine. `backend` null: the one
  // that options.backend names.
  static absl::StatusOr<std::unique_ptr<Engine>> Create(
      const EngineOptions& options,
      const Clock& clock,
      EngineObserver* observer,
      std::unique_ptr<Backend> backend = nullptr);
  // Ends what runs with kCancelled, then joins the thread.
  ~Engine();

  // Validates and enqueues. The sink is called only if this returns OK, and may
  // be called before it returns. The shared_ptr keeps the sink alive while the
  // engine may call it: the stream and the engine end in either order.
  // kInvalidArgument names field, value, limit; kResourceExhausted: queue full;
  // kFailedPrecondition: can never fit, both numbers; kUnavailable: draining.
  absl::StatusOr<RequestId> Submit(Request request,
                                   std::shared_ptr<TokenSink> sink);
  // Ends the request within one step, in any state; unknown ids are ignored.
  void Cancel(RequestId id);

  // Refuses new requests from now on (kUnavailable).
  void Drain();
  // True once nothing waits or runs; false after `timeout`.
  bool WaitIdle(Duration timeout);
  // Ends everything left with `status` and stops the thread. Idempotent.
  void Stop(const absl::Status& status);

  EngineStats Stats() const;  // a snapshot of the last step; thread-safe
  const ModelConfig& config() const;
  const Tokenizer& tokenizer() const;
  const EngineOptions& options() const;         // with defaults filled in
  const LayerProfiles& layer_profiles() const;  // on offer for this model
  std::string backend_description() const;
  std::string backend_notice() const;  // for the operator; may be empty
  // All layers, K and V as they are stored: with scales and what pads a row.
  uint64_t kv_bytes_per_token() const;

 private:
  Engine();
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace kf::engine
