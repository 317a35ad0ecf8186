// What a simulated machine and model are: numbers from data sheets and
// published configurations, built in or read from a JSON file.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

namespace kf::sim {

// One accelerator. Rates are the data sheet's, dense; all > 0.
struct DeviceSpec {
  std::string name;
  double memory_bytes = 0.0;
  double memory_bytes_per_s = 0.0;
  double tensor_flops_16 = 0.0;  // multiply-adds count 2; bf16 operands
  double tensor_flops_8 = 0.0;   // 8-bit operands; 16-bit where there is none
  double vector_flops = 0.0;     // f32, outside the tensor units
  // The share of every rate above that is reached, (0, 1]: one number for a
  // device, whatever the policy (docs/scaling.md, Calibration).
  double efficiency = 1.0;
};

// One decoder. Counts are > 0; query_heads is a multiple of kv_heads.
struct ModelSpec {
  std::string name;
  int32_t layers = 0;
  int32_t hidden = 0;
  int32_t ffn = 0;
  int32_t ffn_matrices = 0;  // 2: up and down; 3: gated
  int32_t query_heads = 0;
  int32_t kv_heads = 0;
  int32_t head_dim = 0;
  int32_t vocabulary = 0;
  int32_t context_tokens = 0;
  bool tied_output = false;  // the embedding is the output matrix too
  int32_t weight_bytes = 2;  // of an element: 1 or 2
  int32_t cache_bytes = 2;   // of an element of K and V: 1, 2 or 4
};

// The built-in ones.
std::vector<std::string> DeviceNames();
std::vector<std::string> ModelNames();

// kInvalidArgument: a field's name, value and limit. An unknown field is one
// too.
absl::StatusOr<DeviceSpec> ParseDevice(std::string_view json);
absl::StatusOr<ModelSpec> ParseModel(std::string_view json);

// A built-in name, or the path of a file that ends in .json.
absl::StatusOr<DeviceSpec> FindDevice(const std::string& name);
absl::StatusOr<ModelSpec> FindModel(const std::string& name);

}  // namespace kf::sim
