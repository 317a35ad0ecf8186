#include "tools/sim/catalog.h"

namespace kf::sim {

const std::vector<DeviceSpec>& BuiltInDevices() {
  // Each efficiency comes from one published number for the whole cache
  // (docs/scaling.md, Calibration).
  static const std::vector<DeviceSpec> devices = {
      // NVIDIA A100 80GB (SXM) data sheet, June 2021: HBM2e 2,039 GB/s, bf16
      // tensor cores 312 TFLOPS dense, f32 19.5 TFLOPS, no 8-bit floats.
      {.name = "a100-80gb",
       .memory_bytes = 80e9,
       .memory_bytes_per_s = 2.039e12,
       .tensor_flops_16 = 312e12,
       .tensor_flops_8 = 312e12,
       .vector_flops = 19.5e12,
       .efficiency = 0.2026},
      // NVIDIA H200 (SXM) data sheet, 2024: HBM3e 141 GB at 4.8 TB/s; bf16
      // 1,979 and fp8 3,958 TFLOPS with sparsity, half of that dense; f32 67.
      {.name = "h200",
       .memory_bytes = 141e9,
       .memory_bytes_per_s = 4.8e12,
       .tensor_flops_16 = 989.5e12,
       .tensor_flops_8 = 1979e12,
       .vector_flops = 67e12,
       .efficiency = 0.566},
  };
  return devices;
}

const std::vector<ModelSpec>& BuiltInModels() {
  // config.json of meta-llama/Llama-3.1-8B.
  static const ModelSpec llama_8b = {.name = "llama-8b",
                                     .layers = 32,
                                     .hidden = 4096,
                                     .ffn = 14336,
                                     .ffn_matrices = 3,
                                     .query_heads = 32,
                                     .kv_heads = 8,
                                     .head_dim = 128,
                                     .vocabulary = 128256,
                                     .context_tokens = 131072};
  static const std::vector<ModelSpec> models = [] {
    ModelSpec llama_8b_fp8 = llama_8b;
    llama_8b_fp8.name = "llama-8b-fp8";
    llama_8b_fp8.weight_bytes = 1;
    llama_8b_fp8.cache_bytes = 1;
    // config.json of mosaicml/mpt-7b (no biases, tied, ALiBi); the context is
    // that of mpt-7b-storywriter, the paper's model for long texts.
    const ModelSpec mpt_7b = {.name = "mpt-7b",
                              .layers = 32,
                              .hidden = 4096,
                              .ffn = 16384,
                              .ffn_matrices = 2,
                              .query_heads = 32,
                              .kv_heads = 32,
                              .head_dim = 128,
                              .vocabulary = 50432,
                              .context_tokens = 65536,
                              .tied_output = true};
    // config.json of HuggingFaceTB/SmolLM2-135M-Instruct, the default model.
    const ModelSpec smollm2_135m = {.name = "smollm2-135m",
                                    .layers = 30,
                                    .hidden = 576,
                                    .ffn = 1536,
                                    .ffn_matrices = 3,
                                    .query_heads = 9,
                                    .kv_heads = 3,
                                    .head_dim = 64,
                                    .vocabulary = 49152,
                                    .context_tokens = 8192,
                                    .tied_output = true};
    return std::vector<ModelSpec>{mpt_7b, llama_8b, llama_8b_fp8, smollm2_135m};
  }();
  return models;
}

}  // namespace kf::sim
