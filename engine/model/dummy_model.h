// A model of random weights, for work on throughput without the weights: what a
// GGUF file of that shape would hold, in memory.
//
// The numbers are the same on every machine: matrices are uniform with
// deviation 0.02 (a llama's initial one), so that activations stay far from
// overflow through any number of layers; norms are 1. Matrices share one block
// of 67 MB, mapped again and again, so the file costs no more memory than
// that, whatever its size; what a backend makes of it has its full size.
#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "engine/model/gguf.h"

namespace kf::engine {

class DummyModel {
 public:
  // `model_config` as in ReadDummyShape, whose errors it returns.
  // kResourceExhausted: no memory for the block, or no address space.
  static absl::StatusOr<std::unique_ptr<DummyModel>> Open(
      const std::string& model_config);
  ~DummyModel();
  DummyModel(const DummyModel&) = delete;
  DummyModel& operator=(const DummyModel&) = delete;

  // Metadata and tensors.
  const GgufFile& file() const;
  // Where the vocabulary is: the GGUF file that gave the shape, if it has one.
  // Else file(): ids 0 to 255 are the bytes, 256 is <s>, 257 is </s>, the
  // others are " 258" and so on, which no text is cut into.
  const GgufFile& tokenizer_file() const;

 private:
  struct Impl;
  explicit DummyModel(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace kf::engine
