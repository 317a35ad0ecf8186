// What the GPU benchmark runs, and in which sizes: those of large models on a
// GPU, or tiny ones that show in a test that it works.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/backend.h"

namespace kf::gpu_bench {

// The attention and the dense layers of one model, for single operations.
struct LayerShape {
  std::string name;
  AttentionShape attention;
  int64_t hidden = 0;
  int64_t ffn = 0;
};

struct Plan {
  // Backends are made one after the other; none is alive when the next is made.
  std::function<absl::StatusOr<std::unique_ptr<Backend>>()> make_backend;
  // Of everything. What is not begun by then is left out, and says so.
  double seconds = 240.0;
  // bf16 tensor-core peak of the device by its data sheet; 0: not known.
  double peak_tflops = 0.0;

  // --- single operations ---
  size_t copy_bytes = 0;   // moved by one copy
  size_t cold_bytes = 0;   // pages read before the same are read again
  double sample_s = 0.05;  // a measurement repeats its operation so long
  int samples = 5;         // and takes the median of so many
  std::vector<LayerShape> layers;
  std::vector<int32_t> decode_rows;
  std::vector<int32_t> decode_keys;
  std::vector<int32_t> prompt_tokens;
  std::vector<int32_t> product_rows;

  // --- whole models of random weights ---
  std::string prefill_model;  // preset or config.json: EngineOptions
  std::vector<int32_t> prefill_tokens;
  std::string table_model;
  std::vector<int32_t> table_tokens;   // prompt, and as many generated
  std::vector<int32_t> table_batches;  // 0: the largest that fits
  int32_t max_batch = 1;
  // Requests ask for so many tokens at least, and are cancelled when the steps
  // are measured: none ends before the last of a batch begins.
  int32_t new_tokens = 1;
  int32_t measured_steps = 32;  // of decode, in each place measured
  double cell_s = 15.0;         // of a cell, at most, for prompts
  uint64_t kv_pool_bytes = 0;   // 0: what the device has left
  uint32_t min_budget = 1;      // CacheOptions::min_tokens
};

// Sizes of large models. `config_folder`: where a config.json may be written.
absl::StatusOr<Plan> LargePlan(const std::string& config_folder);
// The same parts in a second on one core, in some more on the emulator.
absl::StatusOr<Plan> TinyPlan(const std::string& config_folder);

// "NVIDIA H200, sm_90": 989; sm_80: 312; others: 0.
double PeakTflops(const std::string& description);

}  // namespace kf::gpu_bench
