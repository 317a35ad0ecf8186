// Cuts decode attention into chunks of keys.
#include <algorithm>
#include <array>
#include <atomic>
#include <new>
#include <numeric>
#include <span>

#include "kernels/core/status.h"
#include "kernels/cpu/attention.h"
#include "kernels/cpu/attention_layout.h"
#include "kernels/cpu/decode_row.h"
#include "kernels/cpu/for_each_ahead.h"
#include "kernels/cpu/quest.h"
#include "kernels/cpu/rank_positions.h"

namespace kf::cpu {
namespace {

class Decode {
 public:
  Decode(AttentionContext& context, const DecodeAttentionArgs& args)
      : context_(context),
        args_(args),
        shape_(args.shape),
        layout_(MakeHeadLayout(args.shape)),
        kernels_(KernelsOf(context.level)),
        group_(args.shape.query_heads / args.shape.kv_heads),
        partial_(kPartialHeader + layout_.padded_d) {}

  absl::Status Run();

 private:
  struct Worker {
    int64_t query = -1;  // row and head of q and words
    uint32_t* q;         // [group][query_words]
    NoiseWords* words;
    uint32_t* split;
    float* shares;  // [group][most chunks of a row]
    float* logits;  // [group][kDecodeChunk]
    // Where a row needs them:
    uint64_t* keys;          // [most slots or pages of a row]
    unsigned char* rotated;  // K of a chunk
  };

  template <typename T>
  absl::StatusOr<std::span<T>> TakeSpan(int64_t count);
  absl::Status Allocate();
  absl::Status AllocateRow(const DecodeAttentionItem& item, DecodeRow& row);
  absl::Status AllocateWorkers();
  void CheckRun(size_t row) const;
  void Prepare(size_t row, int32_t head, const Worker& worker);
  void Append(size_t row, int32_t head);
  void PackQueries(size_t row, int32_t head, uint32_t* q) const;
  void TakeQueries(size_t row, int32_t head, Worker& worker);
  HeadPages RotateChunk(size_t row,
                        int32_t head,
                        int32_t chunk,
                        const HeadPages& pages,
                        const Worker& worker);
  struct Place {
    size_t row;
    int32_t head;
    int32_t chunk;
  };
  Place PlaceOf(int64_t index) const;
  HeadPages PagesOf(const Place& place) const;
  int32_t SlotsOf(const Place& place) const;
  void RunItem(int64_t index, int64_t next, Worker& worker);
  void RunChunk(const Place& place, int64_t next, Worker& worker);
  void Combine(size_t row, int32_t head, const Worker& worker);

  const float* QkvOf(size_t row) const {
    return args_.qkv + static_cast<int64_t>(row) * shape_.qkv_dim();
  }
  float* PartialsOf(const DecodeRow& row, int32_t head) const {
    return row.partials + int64_t{head} * row.chunks * group_ * partial_;
  }
  float* NumeratorsOf(const DecodeRow& row, int32_t head) const {
    return row.numerators + int64_t{head} * group_ * row.numerators_stride;
  }
  static bool Scored(const DecodeAttentionItem& item) {
    return item.score.enabled && item.add_scores;
  }
  static bool Quest(const DecodeAttentionItem& item) {
    return !item.bounds.pages.empty();
  }
  bool Continued(size_t row) const {
    return row + 1 < args_.items.size() && args_.items[row + 1].continues;
  }
  bool InRun(size_t row) const {
    return args_.items[row].continues || Continued(row);
  }
  // Before the first chunk runs, the token must be in its page.
  bool Prepared(size_t row) const {
    const DecodeAttentionItem& item = args_.items[row];
    return Quest(item) || item.rank_positions || InRun(row);
  }
  int32_t SlotOf(size_t row, int32_t head) const {
    const DecodeAttentionItem& item = args_.items[row];
    return InRun(row) ? item.held : item.free_slot[head];
  }

  AttentionContext& context_;
  const DecodeAttentionArgs& args_;
  const AttentionShape& shape_;
  const HeadLayout layout_;
  const AttentionKernels& kernels_;
  const int32_t group_;
  const int64_t partial_;             // floats of one head's partial result
  const float* rotations_ = nullptr;  // by rank, where a row needs them
  // Of the scratch memory: a step allocates nothing.
  std::span<size_t> prepared_;  // rows
  std::span<size_t> runs_;      // the first of each run of these
  std::span<DecodeRow> rows_;   // [items]
  std::span<Worker> workers_;   // [threads]
};

absl::Status Decode::Run() {
  context_.scratch.Reset();
  if (args_.items.empty()) return absl::OkStatus();
  KF_RETURN_IF_ERROR(Allocate());
  context_.pool.ParallelFor(
      std::ssize(runs_) * shape_.kv_heads, [this](int64_t i, int worker) {
        // In order: the bounds of a page grow token by token.
        size_t row = runs_[static_cast<size_t>(i / shape_.kv_heads)];
        do {
          Prepare(row, static_cast<int32_t>(i % shape_.kv_heads),
                  workers_[static_cast<size_t>(worker)]);
        } while (Continued(row++));
      });
  const int64_t items =
      rows_.back().first_item + int64_t{rows_.back().chunks} * shape_.kv_heads;
  ForEachAhead(context_.pool, items,
               [this](int64_t i, int64_t next, int worker) {
                 RunItem(i, next, workers_[static_cast<size_t>(worker)]);
               });
  return absl::OkStatus();
}

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
  row.chunks = (row.slots + kDecodeChunk - 1) / kDecodeChunk;
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
  for (const DecodeRow& row : rows_) chunks = std::max(chunks, row.chunks);
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
                        scratch.Take<float>(int64_t{group_} * kDecodeChunk));
    KF_ASSIGN_OR_RETURN(w.keys, scratch.Take<uint64_t>(keys));
    if (ranks > 0) {
      KF_ASSIGN_OR_RETURN(w.rotated,
                          scratch.Take<unsigned char>(PagesFor(kDecodeChunk) *
                                                      KeyBytes(layout_)));
    }
    worker = w;
  }
  return absl::OkStatus();
}

// The new token of one head goes into its slot.
void Decode::Append(size_t row, int32_t head) {
  const DecodeAttentionItem& item = args_.items[row];
  const HeadLayout layout = item.rank_positions ? Unrotated(layout_) : layout_;
  const int32_t slot = SlotOf(row, head);
  const float* k =
      QkvOf(row) + int64_t{shape_.query_heads + head} * shape_.head_dim;
  kernels_.append(
      {&layout, k, k + int64_t{shape_.kv_heads} * shape_.head_dim,
       rows_[row].cos_sin,
       BlockOf(MakeHeadPages(shape_, item.cache, head), slot / kPageTokens),
       slot % kPageTokens, item.position});
}

void Decode::PackQueries(size_t row, int32_t head, uint32_t* q) const {
  for (int32_t j = 0; j < group_; ++j) {
    const int32_t h = head * group_ + j;
    kernels_.pack_query(layout_, QkvOf(row) + int64_t{h} * shape_.head_dim,
                        rows_[row].query_cos_sin,
                        q + int64_t{j} * layout_.query_words);
  }
}

// What Quest, rank positions and replays must have of a whole head first.
void Decode::Prepare(size_t row, int32_t head, const Worker& worker) {
  const DecodeAttentionItem& item = args_.items[row];
  const DecodeRow& memory = rows_[row];
  const int32_t new_slot = SlotOf(row, head);
  KF_CHECK(new_slot >= 0 && new_slot <= item.held);
  Append(row, head);
  const HeadPages pages = MakeHeadPages(shape_, item.cache, head);
  if (item.rank_positions) {
    FindRanks(layout_, pages, memory.slots, worker.keys,
              memory.ranks + int64_t{head} * memory.slots);
    return;
  }
  if (!Quest(item)) return;
  KF_CHECK(new_slot == item.held);
  const HeadPages bounds = MakeHeadPages(shape_, item.bounds, head);
  const int32_t newest = item.held / kPageTokens;
  const int32_t slot = item.held % kPageTokens;
  UpdateBounds(layout_, pages, bounds, newest, slot, slot + 1);
  if (memory.pages == nullptr) return;
  PackQueries(row, head, worker.q);
  ChoosePages(kernels_, {&layout_, pages, bounds, newest, memory.read_pages,
                         group_, worker.q, worker.keys,
                         memory.pages + int64_t{head} * memory.read_pages});
}

// Copies K of a chunk, rotated by rank.
HeadPages Decode::RotateChunk(size_t row,
                              int32_t head,
                              int32_t chunk,
                              const HeadPages& pages,
                              const Worker& worker) {
  static constexpr auto kEveryPage = [] {
    std::array<int32_t, kDecodeChunk / kPageTokens> list = {};
    std::iota(list.begin(), list.end(), 0);
    return list;
  }();
  const DecodeRow& memory = rows_[row];
  const int32_t end =
      std::min(memory.slots - chunk * kDecodeChunk, kDecodeChunk);
  const int32_t* ranks = memory.ranks + int64_t{head} * memory.slots +
                         int64_t{chunk} * kDecodeChunk;
  for (int32_t slot = 0; slot < end; slot += kPageTokens) {
    const int32_t page = slot / kPageTokens;
    RotateBlock(kernels_, layout_, rotations_, ranks + slot,
                std::min(kPageTokens, end - slot), BlockOf(pages, page),
                worker.rotated + page * KeyBytes(layout_));
  }
  return {worker.rotated, kEveryPage.data(), KeyBytes(layout_)};
}

Decode::Place Decode::PlaceOf(int64_t index) const {
  const auto after = std::upper_bound(
      rows_.begin(), rows_.end(), index,
      [](int64_t i, const DecodeRow& row) { return i < row.first_item; });
  const auto row = static_cast<size_t>(after - rows_.begin()) - 1;
  const int64_t item = index - rows_[row].first_item;
  return {row, static_cast<int32_t>(item / rows_[row].chunks),
          static_cast<int32_t>(item % rows_[row].chunks)};
}

HeadPages Decode::PagesOf(const Place& place) const {
  const DecodeRow& memory = rows_[place.row];
  HeadPages pages =
      MakeHeadPages(shape_, args_.items[place.row].cache, place.head);
  if (memory.pages != nullptr) {
    pages.pages = memory.pages + int64_t{place.head} * memory.read_pages;
  }
  pages.pages += place.chunk * (kDecodeChunk / kPageTokens);
  return pages;
}

int32_t Decode::SlotsOf(const Place& place) const {
  return std::min(kDecodeChunk,
                  rows_[place.row].slots - place.chunk * kDecodeChunk);
}

void Decode::RunItem(int64_t index, int64_t next, Worker& worker) {
  const Place place = PlaceOf(index);
  RunChunk(place, next, worker);
  // The last chunk to end sees what the others wrote.
  if (rows_[place.row].open_chunks[place.head].fetch_sub(
          1, std::memory_order_acq_rel) == 1) {
    Combine(place.row, place.head, worker);
  }
}

// Queries and noise words of a head, once for chunks that follow each other.
void Decode::TakeQueries(size_t row, int32_t head, Worker& worker) {
  const int64_t query = static_cast<int64_t>(row) * shape_.kv_heads + head;
  if (worker.query == query) return;
  worker.query = query;
  PackQueries(row, head, worker.q);
  const DecodeAttentionItem& item = args_.items[row];
  for (int32_t j = 0; Scored(item) && j < group_; ++j) {
    worker.words[j] = MakeNoiseWords(item.score, args_.layer, head * group_ + j,
                                     item.position);
  }
}

// `next`: the item that the thread runs after this one, or -1.
void Decode::RunChunk(const Place& place, int64_t next, Worker& worker) {
  const auto [row, head, chunk] = place;
  const DecodeAttentionItem& item = args_.items[row];
  const DecodeRow& memory = rows_[row];
  const int32_t first = chunk * kDecodeChunk;
  const int32_t slots = SlotsOf(place);
  const int32_t free_slot = SlotOf(row, head);
  KF_CHECK(free_slot >= 0 && free_slot <= item.held);
  if (!Prepared(row) && free_slot >= first && free_slot < first + slots) {
    Append(row, head);
  }
  TakeQueries(row, head, worker);
  const HeadPages pages = PagesOf(place);
  DecodeChunk work = {};
  work.layout = &layout_;
  work.pages = pages;
  if (next >= 0) {
    const Place ahead = PlaceOf(next);
    work.ahead = PagesOf(ahead);
    work.ahead_pages = PagesFor(SlotsOf(ahead));
    work.ahead_bytes = Scored(args_.items[ahead.row])
                           ? static_cast<int64_t>(HeadBytes(shape_))
                           : 2 * layout_.v_offset;
  }
  work.keys = item.rank_positions ? RotateChunk(row, head, chunk, pages, worker)
                                  : pages;
  work.group = group_;
  work.slots = slots;
  work.q = worker.q;
  work.score = MakeScoreSpec(item.score);
  work.score.enabled = Scored(item);
  work.words = worker.words;
  work.split = worker.split;
  work.logits = worker.logits;
  work.partial = PartialsOf(memory, head) + int64_t{chunk} * group_ * partial_;
  if (work.score.enabled) {
    work.numerators = NumeratorsOf(memory, head) + first;
    work.numerators_stride = memory.numerators_stride;
  }
  kernels_.decode_chunk(work);
}

void Decode::Combine(size_t row, int32_t head, const Worker& worker) {
  const DecodeAttentionItem& item = args_.items[row];
  const DecodeRow& memory = rows_[row];
  DecodeCombine work = {};
  work.layout = &layout_;
  work.pages = MakeHeadPages(shape_, item.cache, head);
  work.group = group_;
  work.slots = memory.slots;
  work.partial = PartialsOf(memory, head);
  work.score = MakeScoreSpec(item.score);
  work.score.enabled = Scored(item);
  if (work.score.enabled) {
    work.shares = worker.shares;
    work.numerators = NumeratorsOf(memory, head);
    work.numerators_stride = memory.numerators_stride;
  }
  work.out = args_.out + static_cast<int64_t>(row) * shape_.out_dim() +
             int64_t{head} * group_ * shape_.head_dim;
  if (item.row_scores != nullptr) {
    work.row_scores = item.row_scores + int64_t{head} * (item.held + 1);
  }
  kernels_.decode_combine(work);
  // Other rows of a run do not read the slot, but may still be at work.
  if (item.defer_eviction || Continued(row)) return;
  if (item.held + 1 <= item.budget) {
    item.free_slot[head] = item.held + 1;
    return;
  }
  const int32_t victim = kernels_.find_victim(
      {&layout_, work.pages, item.held + 1, item.position - item.recent,
       MakeAgeSpec(item.age)});
  KF_CHECK(victim >= 0);
  item.free_slot[head] = victim;
}

}  // namespace

absl::Status DecodeAttention(AttentionContext& context,
                             const DecodeAttentionArgs& args) {
  return Decode(context, args).Run();
}

}  // namespace kf::cpu
