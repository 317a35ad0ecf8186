// Runs decode attention chunk by chunk.
#include <algorithm>
#include <array>
#include <atomic>
#include <numeric>

#include "kernels/core/status.h"
#include "kernels/cpu/attention.h"
#include "kernels/cpu/attention_layout.h"
#include "kernels/cpu/decode.h"
#include "kernels/cpu/quest.h"
#include "kernels/cpu/rank_positions.h"

namespace kf::cpu {

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
  // A head's chunks on one thread: whoever ends the last reads what all wrote.
  ForEachAhead(
      context_.pool, items,
      [this](int64_t i) {
        const Place place = PlaceOf(i);
        return i + rows_[place.row].chunks - place.chunk;
      },
      [this](int64_t i, IndexRun run, int64_t next, int worker) {
        RunItem(i, run, next, workers_[static_cast<size_t>(worker)]);
      });
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
    std::array<int32_t, kMaxDecodeChunk / kPageTokens> list = {};
    std::iota(list.begin(), list.end(), 0);
    return list;
  }();
  const DecodeRow& memory = rows_[row];
  const int32_t end = SlotsOf({row, head, chunk});
  const int32_t* ranks = memory.ranks + int64_t{head} * memory.slots +
                         int64_t{chunk} * memory.chunk_slots;
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
  pages.pages += place.chunk * (memory.chunk_slots / kPageTokens);
  return pages;
}

int32_t Decode::SlotsOf(const Place& place) const {
  const DecodeRow& row = rows_[place.row];
  return std::min(row.chunk_slots, row.slots - place.chunk * row.chunk_slots);
}

Decode::Results Decode::ResultsOf(const Place& place,
                                  IndexRun run,
                                  const Worker& worker) const {
  const DecodeRow& row = rows_[place.row];
  // One thread's stay in its own cache.
  if (run.end - run.begin == row.chunks) {
    return {worker.partials, worker.numerators, false};
  }
  float* numerators = row.numerators;
  if (numerators != nullptr) {
    numerators += int64_t{place.head} * group_ * row.numerators_stride;
  }
  return {row.partials + int64_t{place.head} * row.chunks * group_ * partial_,
          numerators, true};
}

BlocksAhead Decode::AheadOf(int64_t next) const {
  if (next < 0) return {};
  const Place place = PlaceOf(next);
  return {PagesOf(place), PagesFor(SlotsOf(place)),
          Scored(args_.items[place.row])
              ? static_cast<int64_t>(HeadBytes(shape_))
              : 2 * layout_.v_offset};
}

void Decode::RunItem(int64_t index,
                     IndexRun run,
                     int64_t next,
                     Worker& worker) {
  const Place place = PlaceOf(index);
  const Results results = ResultsOf(place, run, worker);
  BlocksAhead ahead = AheadOf(next);
  BlocksAhead later = {};
  const bool ends_run = !results.shared && index + 1 == run.end;
  if (ends_run && ahead.count > 0 && Scored(args_.items[place.row])) {
    // Adding up the scores fetches these.
    const int64_t bytes = int64_t{PagesFor(rows_[place.row].slots)} *
                          kScoreLines * static_cast<int64_t>(kCacheLineBytes);
    later = ahead;
    later.count = static_cast<int32_t>(
        std::min<int64_t>(bytes / ahead.bytes, ahead.count / 2));
    ahead.count -= later.count;
    later.pages.pages += ahead.count;
  }
  RunChunk(place, results, ahead, worker);
  // The last chunk to end sees what the others wrote.
  const bool last = results.shared
                        ? rows_[place.row].open_chunks[place.head].fetch_sub(
                              1, std::memory_order_acq_rel) == 1
                        : ends_run;
  if (last) Combine(place, results, later, worker);
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

void Decode::RunChunk(const Place& place,
                      const Results& results,
                      const BlocksAhead& ahead,
                      Worker& worker) {
  const auto [row, head, chunk] = place;
  const DecodeAttentionItem& item = args_.items[row];
  const DecodeRow& memory = rows_[row];
  const int32_t first = chunk * memory.chunk_slots;
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
  work.ahead = ahead;
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
  work.partial = results.partials + int64_t{chunk} * group_ * partial_;
  if (work.score.enabled) {
    work.numerators = results.numerators + first;
    work.numerators_stride = memory.numerators_stride;
  }
  kernels_.decode_chunk(work);
}

void Decode::Combine(const Place& place,
                     const Results& results,
                     const BlocksAhead& ahead,
                     const Worker& worker) {
  const size_t row = place.row;
  const int32_t head = place.head;
  const DecodeAttentionItem& item = args_.items[row];
  const DecodeRow& memory = rows_[row];
  DecodeCombine work = {};
  work.ahead = ahead;
  work.layout = &layout_;
  work.pages = MakeHeadPages(shape_, item.cache, head);
  work.group = group_;
  work.slots = memory.slots;
  work.partial = results.partials;
  work.score = MakeScoreSpec(item.score);
  work.score.enabled = Scored(item);
  if (work.score.enabled) {
    work.shares = worker.shares;
    work.numerators = results.numerators;
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

absl::Status DecodeAttention(AttentionContext& context,
                             const DecodeAttentionArgs& args) {
  return Decode(context, args).Run();
}

}  // namespace kf::cpu
