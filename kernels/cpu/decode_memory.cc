// The working memory of decode attention, all of the scratch arena.
#include <algorithm>
#include <atomic>
#include <new>
#include <span>

#include "kernels/core/status.h"
#include "kernels/cpu/decode.h"
#include "kernels/cpu/rank_positions.h"

namespace kf::cpu {

template <typename T>
absl::StatusOr<std::span<T>> Decode::TakeSpan(int64_t count) {
  KF_ASSIGN_OR_RETURN(T * first, context_.scratch.Take<T>(count));
  return std::span<T>(first, static_cast<size_t>(count));
}

absl::Status Decode::Allocate() {
  int32_t last = 0;
  for (const DecodeAttentionItem& item : args_.items) {
    last = std::max(last, item.position);
  }
  context_.rope.Prepare(shape_, last);
  const int64_t count = std::ssize(args_.items);
  KF_ASSIGN_OR_RETURN(rows_, TakeSpan<DecodeRow>(count));
  KF_ASSIGN_OR_RETURN(const auto prepared, TakeSpan<size_t>(count));
  KF_ASSIGN_OR_RETURN(const auto runs, TakeSpan<size_t>(count));
  size_t prepared_count = 0;
  size_t run_count = 0;
  int64_t items = 0;
  for (size_t i = 0; i < args_.items.size(); ++i) {
    const DecodeAttentionItem& item = args_.items[i];
    KF_CHECK(item.held >= 0 && item.held <= item.budget);
    KF_CHECK(item.held <= item.position);
    KF_CHECK(item.recent >= 0 && item.recent <= item.budget);
    KF_CHECK(item.row_scores == nullptr || item.defer_eviction);
    KF_CHECK(std::ssize(item.cache.pages) >= PagesFor(item.held + 1));
    if (InRun(i)) CheckRun(i);
    if (Prepared(i)) {
      prepared[prepared_count++] = i;
      if (!item.continues) runs[run_count++] = i;
    }
    DecodeRow row = {};
    row.first_item = items;
    KF_RETURN_IF_ERROR(AllocateRow(item, row));
    items += int64_t{row.chunks} * shape_.kv_heads;
    rows_[i] = row;
  }
  prepared_ = prepared.first(prepared_count);
  runs_ = runs.first(run_count);
  return AllocateWorkers();
}

void Decode::CheckRun(size_t row) const {
  const DecodeAttentionItem& item = args_.items[row];
  KF_CHECK(item.held == item.position && item.held < item.budget);
  KF_CHECK(!Scored(item) && !item.rank_positions && !item.defer_eviction);
  if (!item.continues) return;
  KF_CHECK(row > 0);
  const DecodeAttentionItem& before = args_.items[row - 1];
  KF_CHECK(item.position == before.position + 1);
  KF_CHECK(item.free_slot == before.free_slot);
}

absl::Status Decode::AllocateRow(const DecodeAttentionItem& item,
                                 DecodeRow& row) {
  ScratchArena& scratch = context_.scratch;
  row.slots = item.held + 1;
  if (Quest(item)) {
    KF_CHECK(!Scored(item) && !item.rank_positions);
    KF_CHECK(item.held == item.position && item.held < item.budget);
    const int32_t pages = PagesFor(row.slots);
    KF_CHECK(std::ssize(item.bounds.pages) >= PagesFor(pages));
    KF_CHECK(item.read_pages >= 0);
    if (item.read_pages > 0 && item.read_pages < pages) {
      row.read_pages = item.read_pages;
      row.slots -= (pages - row.read_pages) * kPageTokens;
      KF_ASSIGN_OR_RETURN(
          row.pages,
          scratch.Take<int32_t>(int64_t{shape_.kv_heads} * row.read_pages));
    }
  }
  row.chunk_slots = DecodeChunkSlots(row.slots);
  row.chunks = (row.slots + row.chunk_slots - 1) / row.chunk_slots;
  const auto rotation = [&](int32_t position) -> absl::StatusOr<const float*> {
    KF_ASSIGN_OR_RETURN(float* cos_sin, scratch.Take<float>(shape_.head_dim));
    context_.rope.Row(position, cos_sin);
    return cos_sin;
  };
  KF_ASSIGN_OR_RETURN(row.cos_sin, rotation(item.position));
  row.query_cos_sin = row.cos_sin;
  if (item.rank_positions) {
    KF_ASSIGN_OR_RETURN(row.query_cos_sin, rotation(item.held));
    KF_ASSIGN_OR_RETURN(
        row.ranks, scratch.Take<int32_t>(int64_t{shape_.kv_heads} * row.slots));
  }
  KF_ASSIGN_OR_RETURN(
      row.partials,
      scratch.Take<float>(int64_t{shape_.query_heads} * row.chunks * partial_));
  if (Scored(item)) {
    row.numerators_stride = int64_t{PagesFor(row.slots)} * kPageTokens;
    KF_ASSIGN_OR_RETURN(
        row.numerators,
        scratch.Take<float>(shape_.query_heads * row.numerators_stride));
  }
  KF_ASSIGN_OR_RETURN(row.open_chunks,
                      scratch.Take<std::atomic<int32_t>>(shape_.kv_heads));
  for (int32_t g = 0; g < shape_.kv_heads; ++g) {
    new (row.open_chunks + g) std::atomic<int32_t>(row.chunks);
  }
  return absl::OkStatus();
}

absl::Status Decode::AllocateWorkers() {
  ScratchArena& scratch = context_.scratch;
  int32_t ranks = 0;
  int32_t keys = 0;
  int32_t chunks = 0;
  int64_t numerators = 0;
  for (const DecodeRow& row : rows_) {
    chunks = std::max(chunks, row.chunks);
    numerators = std::max(numerators, row.numerators_stride);
  }
  for (const size_t i : prepared_) {
    const DecodeAttentionItem& item = args_.items[i];
    const int32_t slots = item.held + 1;
    if (item.rank_positions) ranks = std::max(ranks, slots);
    keys = std::max(keys, item.rank_positions ? slots : PagesFor(slots));
  }
  if (ranks > 0) {
    KF_ASSIGN_OR_RETURN(rotations_, RankRotations(context_, shape_, ranks));
  }
  KF_ASSIGN_OR_RETURN(workers_, TakeSpan<Worker>(context_.pool.threads()));
  for (Worker& worker : workers_) {
    Worker w = {};
    KF_ASSIGN_OR_RETURN(
        w.q, scratch.Take<uint32_t>(int64_t{group_} * layout_.query_words));
    KF_ASSIGN_OR_RETURN(
        w.split, scratch.Take<uint32_t>(int64_t{group_} * layout_.steps * 2));
    KF_ASSIGN_OR_RETURN(w.shares,
                        scratch.Take<float>(int64_t{group_} * chunks));
    KF_ASSIGN_OR_RETURN(w.words, scratch.Take<NoiseWords>(group_));
    KF_ASSIGN_OR_RETURN(w.logits,
                        scratch.Take<float>(int64_t{group_} * kMaxDecodeChunk));
    KF_ASSIGN_OR_RETURN(
        w.partials, scratch.Take<float>(int64_t{chunks} * group_ * partial_));
    KF_ASSIGN_OR_RETURN(w.numerators, scratch.Take<float>(group_ * numerators));
    KF_ASSIGN_OR_RETURN(w.keys, scratch.Take<uint64_t>(keys));
    if (ranks > 0) {
      KF_ASSIGN_OR_RETURN(
          w.rotated, scratch.Take<unsigned char>(PagesFor(kMaxDecodeChunk) *
                                                 KeyBytes(layout_)));
    }
    worker = w;
  }
  return absl::OkStatus();
}

}  // namespace kf::cpu
