// Drives the kernels of a prompt's attention as the backend does: slices of
// one or more prompts, each with pages of its own, and all memory NaN first.
// Test support.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "kernels/backend.h"
#include "kernels/cuda/attention_calls.h"
#include "kernels/cuda/page_layout.h"
#include "kernels/cuda/prompt.h"
#include "tests/cuda/device_array.h"
#include "tests/kernels/attention_rig.h"

namespace kf::cuda {

// One prompt through one layer: the rows of kf::testing::Sequence with the same
// options, so that a reference backend can be asked for the same.
class Prompt {
 public:
  explicit Prompt(const kf::testing::SequenceOptions& options);

  // The next `rows` rows of each prompt (fewer at its end) in one call.
  // Prompts have one shape and one layer; slopes: of ALiBi, or empty.
  static void Run(std::span<Prompt* const> batch,
                  int32_t rows,
                  const std::vector<float>& slopes = {});
  void RunAll(int32_t slice, const std::vector<float>& slopes = {});

  const kf::testing::SequenceOptions& options() const { return options_; }
  std::vector<float> Row(int32_t position) const {
    return source_.RowAt(position);
  }
  // [n, H d].
  const std::vector<float>& out() const { return out_; }
  // What the pages hold: K and V [G][n][dp] as f32, position and score [G][n].
  struct Held {
    std::vector<float> k, v, score;
    std::vector<int32_t> position;
  };
  Held Read() const;
  std::vector<std::byte> PoolBytes() const { return pool_.Download(); }

 private:
  kf::testing::SequenceOptions options_;
  std::unique_ptr<Backend> reference_;  // of source_, which is never run
  kf::testing::Sequence source_;
  PageLayout layout_;
  std::vector<int32_t> pages_;  // in a shuffled order
  gpu::DeviceArray<int32_t> device_pages_;
  gpu::DeviceArray<std::byte> pool_;
  int32_t seen_ = 0;
  std::vector<float> out_;
};

}  // namespace kf::cuda
