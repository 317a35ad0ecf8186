// Gives sequences their caches, pages and free slots, from admission to the
// end; and keeps those of one request apart where they write.
//
// Thread-compatible: the engine thread's.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/cache/page_pool.h"
#include "engine/model/model_config.h"
#include "engine/sequence.h"
#include "engine/sequence_group.h"
#include "kernels/backend.h"

namespace kf::engine {

class CacheStore {
 public:
  // What Create takes of the backend's memory.
  static size_t Bytes(const ModelConfig& config, int32_t max_batch);

  // For at most max_batch sequences at a time. All outlive the store. `shape`
  // is that of the pool's pages.
  static absl::StatusOr<std::unique_ptr<CacheStore>> Create(
      const ModelConfig& config,
      const AttentionShape& shape,
      int32_t max_batch,
      Backend& backend,
      PagePool& pool);

  // The cache of the first sequence, for the prompt. The scheduler has counted
  // the pages of all, here and wherever a cache grows.
  void Open(SequenceGroup& group);
  // After the prompt: gives the other sequences what the first one has.
  absl::Status Fork(SequenceGroup& group);
  // After a step of a beam search: each beam goes on with what its parent has.
  void Reorder(SequenceGroup& group);
  // Before a decode step of these sequences: there is room for what it writes,
  // in one cache alone.
  // `tokens` > 1 of each in a replay.
  absl::Status PrepareStep(std::span<Sequence* const> sequences,
                           int32_t tokens = 1);
  // What the sequence had is free again. Idempotent.
  void Close(Sequence& sequence);

 private:
  CacheStore(const ModelConfig& config,
             const AttentionShape& shape,
             int32_t max_batch,
             Backend& backend,
             PagePool& pool,
             std::unique_ptr<Buffer> free_slots);
  void TakeSlots(Sequence& sequence);
  absl::Status PrepareBeams(SequenceGroup& group);
  absl::Status ReadSlots(const SequenceCache& cache);
  absl::Status Copy();

  const ModelConfig& config_;
  const AttentionShape shape_;
  Backend& backend_;
  PagePool& pool_;
  std::unique_ptr<Buffer> free_slots_;  // int32 [max_batch, layers, G]
  std::vector<int32_t> unused_slots_;   // rows of free_slots_
  std::vector<PageCopy> copies_;        // scratch
  std::vector<int32_t> slots_;          // [layers, G], scratch
};

}  // namespace kf::engine
