// The shape of a model of random weights: one of a few known models, or what a
// configuration file says.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "engine/model/model_config.h"

namespace kf::engine {

// A preset's name, or the path of a file: a GGUF file (its metadata; tensors
// are not read) or a config.json of architecture llama. Presets:
//   llama-8b        Llama 3 8B: 32 layers of 32 heads on 8 kv heads
//   mpt-7b-shape    a llama decoder with MPT-7B's cache (32 kv heads of 128)
//                   and about its number of weights
//   smollm2-135m    the default model's
// name, architecture and parameters are left to the caller. kNotFound: no such
// preset or file; kInvalidArgument names the field, its value and what is
// wanted.
absl::StatusOr<ModelConfig> ReadDummyShape(const std::string& model_config);

}  // namespace kf::engine
