// Cache pages of many sequences with a prompt in them, for measuring what reads
// them.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/backend.h"

namespace kf::gpu_bench {

// `count` standard normal numbers in backend memory.
absl::StatusOr<std::unique_ptr<Buffer>> RandomFloats(Backend& backend,
                                                     int64_t count);

// `sets` x `rows` sequences, each of `keys` tokens and a free slot, that share
// no page. One prompt is computed, and its pages are copied.
class CacheRig {
 public:
  static absl::StatusOr<std::unique_ptr<CacheRig>> Create(
      Backend& backend,
      const AttentionShape& shape,
      int32_t keys,
      int32_t rows,
      int64_t sets);

  // Pages of one set of sequences, in bytes.
  static int64_t SetBytes(const Backend& backend,
                          const AttentionShape& shape,
                          int32_t keys,
                          int32_t rows);

  // One decode step of the next set. Scored: it adds scores and evicts, as a
  // cache that is full does. Else it attends alone. Every sequence keeps its
  // length.
  enum class Kind : uint8_t { kAttend, kScoreAndEvict };
  absl::Status Step(Kind kind);
  // All rows of the prompt again. Not scored, or all rows are.
  absl::Status Prompt(bool scored);
  // The prompt cut to half of it, into other pages.
  absl::Status Compact();

 private:
  CacheRig(Backend& backend,
           const AttentionShape& shape,
           int32_t keys,
           int32_t rows,
           int64_t sets);
  absl::Status Fill();
  PageSpan PagesOf(int64_t sequence) const;

  Backend& backend_;
  const AttentionShape shape_;
  const int32_t keys_;
  const int32_t rows_;
  const int64_t sets_;
  const int64_t pages_each_;
  int64_t next_set_ = 0;
  int32_t position_;
  std::vector<int32_t> page_list_;
  std::unique_ptr<Buffer> pool_;
  std::unique_ptr<Buffer> free_slots_;  // [sets, rows, G]
  std::unique_ptr<Buffer> prompt_qkv_;  // [keys, qkv]
  std::unique_ptr<Buffer> prompt_out_;
  std::unique_ptr<Buffer> step_qkv_;  // [rows, qkv]
  std::unique_ptr<Buffer> step_out_;
};

}  // namespace kf::gpu_bench
