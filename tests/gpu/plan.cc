#include "tests/gpu/plan.h"

#include <fstream>
#include <string_view>

#include "absl/status/status.h"

namespace kf::gpu_bench {
namespace {

constexpr size_t kMiB = size_t{1} << 20;

// Llama 3 8B with a context that the prefill curve fits in: the preset's own
// ends at 8,192.
constexpr std::string_view kLongLlama8b = R"({
  "model_type": "llama", "hidden_size": 4096, "intermediate_size": 14336,
  "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8,
  "head_dim": 128, "vocab_size": 128256, "max_position_embeddings": 32768,
  "rope_theta": 500000.0
})";

constexpr std::string_view kTiny = R"({
  "model_type": "llama", "hidden_size": 64, "intermediate_size": 128,
  "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
  "head_dim": 16, "vocab_size": 320, "max_position_embeddings": 4096
})";

absl::StatusOr<std::string> WriteConfig(const std::string& path,
                                        std::string_view text) {
  std::ofstream out(path);
  out << text;
  out.flush();
  if (!out) return absl::UnavailableError("cannot write " + path);
  return path;
}

}  // namespace

absl::StatusOr<Plan> LargePlan(const std::string& config_folder) {
  Plan plan;
  plan.copy_bytes = 1024 * kMiB;
  plan.cold_bytes = 512 * kMiB;  // ten times the cache of an H200
  plan.layers = {
      {"llama-8b", {32, 8, 128, 128, 500000.0, DType::kBF16}, 4096, 14336},
      {"mpt-7b", {32, 32, 128, 128, 10000.0, DType::kBF16}, 4096, 10944}};
  plan.decode_rows = {1, 16, 64};
  plan.decode_keys = {1024, 4096};
  plan.prompt_tokens = {2048, 8192};
  plan.product_rows = {1, 16, 64, 2048};
  auto config = WriteConfig(config_folder + "/llama-8b-32k.json", kLongLlama8b);
  if (!config.ok()) return config.status();
  plan.prefill_model = *config;
  plan.prefill_tokens = {2048, 4096, 8192, 16384};
  plan.table_model = "mpt-7b-shape";
  plan.table_tokens = {1024, 2048, 4096};
  plan.table_batches = {1, 2, 0};
  plan.max_batch = 512;
  return plan;
}

absl::StatusOr<Plan> TinyPlan(const std::string& config_folder) {
  Plan plan;
  plan.copy_bytes = 1 << 16;
  plan.cold_bytes = 1 << 14;
  plan.sample_s = 0.0;  // one call
  plan.samples = 1;
  plan.layers = {{"tiny", {4, 2, 16, 16, 10000.0, DType::kBF16}, 64, 128}};
  plan.decode_rows = {2};
  plan.decode_keys = {40};
  plan.prompt_tokens = {48};
  plan.product_rows = {3};
  auto config = WriteConfig(config_folder + "/tiny.json", kTiny);
  if (!config.ok()) return config.status();
  plan.prefill_model = *config;
  plan.prefill_tokens = {40};
  plan.table_model = *config;
  plan.table_tokens = {32};
  plan.table_batches = {1, 0};
  plan.max_batch = 3;
  plan.measured_steps = 4;
  plan.new_tokens = 2000;
  plan.kv_pool_bytes = kMiB;
  return plan;
}

double PeakTflops(const std::string& description) {
  if (description.find("sm_90") != std::string::npos) return 989.0;
  if (description.find("sm_80") != std::string::npos) return 312.0;
  return 0.0;
}

}  // namespace kf::gpu_bench
