// Kept sets that DecodeAttention cannot choose by itself, one row and layer at
// a time: of all heads of a layer, of all layers, or of all beams of a request.
// Their rows run with eviction deferred, and what leaves is chosen here.
//
// Thread-compatible: the engine thread's.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "engine/cache/sequence_cache.h"
#include "kernels/backend.h"

namespace kf::engine {

// One sequence feeds one token. score.tau is this step's. Rows of beams of one
// request stand together; what they have in common, their caches' free_slots,
// says so.
struct DecodeRow {
  int32_t token = 0;
  const SequenceCache* cache = nullptr;  // its `fed` excludes this token
  ScoreOptions score;
  bool add_scores = true;
  // A replay: tokens of the same sequence in the rows just before, 0, 1, 2, ...
  // Of one that evicts and scores nothing, and is no beam.
  int32_t ahead = 0;
};

// For this step's token.
ScoreAge AgeOf(const DecodeRow& row);

class KeptSets {
 public:
  // `backend` outlives this.
  KeptSets(const AttentionShape& shape, int32_t layers, Backend& backend)
      : shape_(shape), layers_(layers), backend_(backend) {}

  // Room for so many rows of beams with so many tokens, where it is not taken
  // as they come: of a device's memory.
  absl::Status Reserve(int32_t rows, int32_t tokens);

  // The rows of one decode step; they stay until AfterStep has returned.
  absl::Status Begin(std::span<const DecodeRow> rows);
  // Item i is row i, in any layer.
  void Defer(std::span<DecodeAttentionItem> items) const;
  // After the attention of a layer, and of all.
  absl::Status AfterLayer(int32_t layer);
  absl::Status AfterStep();

 private:
  // Rows [first, first + rows) share one set.
  struct Set {
    size_t first = 0;
    size_t rows = 0;
  };
  const DecodeRow& lead(const Set& set) const { return rows_[set.first]; }
  bool AddsRows(const Set& set) const;
  SharedLayer LayerOf(const Set& set, int32_t layer);
  absl::Status AddRows(const Set& set, int32_t layer);
  absl::Status Evict(const Set& set, int32_t first_layer, int32_t layers);

  const AttentionShape shape_;
  const int32_t layers_;
  Backend& backend_;
  std::span<const DecodeRow> rows_;
  std::vector<Set> sets_;  // those with deferred eviction
  // What each beam's row gives to the scores of one layer, [G, held + 1] after
  // one another.
  std::unique_ptr<Buffer> row_scores_;
  std::vector<float*> row_scores_of_;  // [rows]; null: the row has none
  // Scratch.
  std::vector<PageSpan> spans_;
  std::vector<SharedLayer> shared_;
  std::vector<const float*> sources_;
};

}  // namespace kf::engine
