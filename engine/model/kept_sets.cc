#include "engine/model/kept_sets.h"

#include <algorithm>

#include "kernels/core/status.h"

namespace kf::engine {

ScoreAge AgeOf(const DecodeRow& row) {
  const SequenceCache& cache = *row.cache;
  return {.enabled = cache.rules.age,
          .prompt_tokens = cache.prompt_tokens,
          .prompt_rows = cache.rules.prompt_rows,
          .decode_rows = row.add_scores ? cache.fed + 1 : 0};
}

// With several rows, each gives its part to one common score.
bool KeptSets::AddsRows(const Set& set) const {
  return set.rows > 1 && lead(set).score.enabled && lead(set).add_scores;
}

absl::Status KeptSets::Reserve(int32_t rows, int32_t tokens) {
  const size_t floats = static_cast<size_t>(rows) *
                        static_cast<size_t>(shape_.kv_heads) *
                        (static_cast<size_t>(tokens) + 1);
  KF_ASSIGN_OR_RETURN(
      row_scores_, backend_.Allocate(floats * sizeof(float), "beams' scores"));
  return absl::OkStatus();
}

absl::Status KeptSets::Begin(std::span<const DecodeRow> rows) {
  rows_ = rows;
  sets_.clear();
  row_scores_of_.assign(rows.size(), nullptr);
  size_t floats = 0;
  const auto row_floats = [&](const DecodeRow& row) {
    return static_cast<size_t>(shape_.kv_heads) *
           (static_cast<size_t>(row.cache->most_held()) + 1);
  };
  for (size_t first = 0; first < rows.size();) {
    Set set{.first = first, .rows = 1};
    const SequenceCache& cache = *rows[first].cache;
    while (first + set.rows < rows.size() &&
           rows[first + set.rows].ahead == 0 &&
           rows[first + set.rows].cache->free_slots == cache.free_slots) {
      ++set.rows;
    }
    first += set.rows;
    if (set.rows == 1 && cache.rules.scope == SelectionScope::kHead) continue;
    sets_.push_back(set);
    if (AddsRows(set)) floats += set.rows * row_floats(lead(set));
  }
  if (floats == 0) return absl::OkStatus();
  if (row_scores_ == nullptr || row_scores_->bytes() / sizeof(float) < floats) {
    row_scores_.reset();
    // Twice: a step's rows grow by a token each.
    KF_ASSIGN_OR_RETURN(
        row_scores_,
        backend_.Allocate(2 * floats * sizeof(float), "beams' scores"));
  }
  auto* next = row_scores_->as<float>();
  for (const Set& set : sets_) {
    if (!AddsRows(set)) continue;
    for (size_t i = set.first; i < set.first + set.rows; ++i) {
      row_scores_of_[i] = next;
      next += row_floats(rows[i]);
    }
  }
  return absl::OkStatus();
}

void KeptSets::Defer(std::span<DecodeAttentionItem> items) const {
  for (const Set& set : sets_) {
    for (size_t i = set.first; i < set.first + set.rows; ++i) {
      items[i].defer_eviction = true;
      items[i].row_scores = row_scores_of_[i];
    }
  }
}

absl::Status KeptSets::AfterLayer(int32_t layer) {
  for (const Set& set : sets_) {
    if (AddsRows(set)) KF_RETURN_IF_ERROR(AddRows(set, layer));
    if (lead(set).cache->rules.scope != SelectionScope::kModel) {
      KF_RETURN_IF_ERROR(Evict(set, layer, 1));
    }
  }
  return absl::OkStatus();
}

absl::Status KeptSets::AfterStep() {
  for (const Set& set : sets_) {
    if (lead(set).cache->rules.scope == SelectionScope::kModel) {
      KF_RETURN_IF_ERROR(Evict(set, 0, layers_));
    }
  }
  rows_ = {};
  return absl::OkStatus();
}

// The layer's caches of all rows of the set, appended to `spans_`.
SharedLayer KeptSets::LayerOf(const Set& set, int32_t layer) {
  const size_t at = spans_.size();
  for (size_t i = set.first; i < set.first + set.rows; ++i) {
    spans_.push_back(rows_[i].cache->span(layer));
  }
  return {.caches = std::span(spans_).subspan(at),
          .free_slot = lead(set).cache->free_slot(layer)};
}

absl::Status KeptSets::AddRows(const Set& set, int32_t layer) {
  spans_.clear();
  sources_.assign(
      row_scores_of_.begin() + static_cast<ptrdiff_t>(set.first),
      row_scores_of_.begin() + static_cast<ptrdiff_t>(set.first + set.rows));
  return backend_.AddRowScores({.shape = shape_,
                                .layer = LayerOf(set, layer),
                                .held = lead(set).cache->held(layer),
                                .row_scores = sources_});
}

absl::Status KeptSets::Evict(const Set& set, int32_t first, int32_t layers) {
  const SequenceCache& cache = *lead(set).cache;
  spans_.clear();
  spans_.reserve(set.rows * static_cast<size_t>(layers));  // spans of it stay
  shared_.clear();
  for (int32_t layer = first; layer < first + layers; ++layer) {
    shared_.push_back(LayerOf(set, layer));
  }
  // Layers that share a set are of one size.
  const LayerSize size = cache.rules.size(first);
  return backend_.Evict({.shape = shape_,
                         .position = cache.seen(),
                         .held = cache.held(first),
                         .budget = size.budget,
                         .recent = size.recent,
                         .layers = shared_,
                         .shared = cache.rules.scope != SelectionScope::kHead,
                         .age = AgeOf(lead(set))});
}

}  // namespace kf::engine
