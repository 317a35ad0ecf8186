// Cuts decode attention into chunks of keys.
#include <algorithm>
#include <atomic>
#include <new>
#include <vector>

#include "kernels/core/status.h"
#include "kernels/cpu/attention.h"
#include "kernels/cpu/attention_layout.h"

namespace kf::cpu {
namespace {

// One sequence's part of the working memory.
struct Row {
  int32_t chunks;
  int64_t first_item;    // of the work items
  const float* cos_sin;  // [rotary_dim]
  float* partials;       // [kv_heads][chunks][group][partial]
  float* numerators;     // [query_heads][stride], if scored
  int64_t numerators_stride;
  std::atomic<int32_t>* open_chunks;  // [kv_heads]
};

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
    uint32_t* q;  // [group][steps]
    NoiseWords* words;
    float* logits;  // [group][kDecodeChunk]
  };

  absl::Status Allocate();
  void RunItem(int64_t index, const Worker& worker);
  void RunChunk(size_t row, int32_t head, int32_t chunk, const Worker& worker);
  void Combine(size_t row, int32_t head);

  const float* QkvOf(size_t row) const {
    return args_.qkv + static_cast<int64_t>(row) * shape_.qkv_dim();
  }
  float* PartialsOf(const Row& row, int32_t head) const {
    return row.partials + int64_t{head} * row.chunks * group_ * partial_;
  }
  float* NumeratorsOf(const Row& row, int32_t head) const {
    return row.numerators + int64_t{head} * group_ * row.numerators_stride;
  }
  static bool Scored(const DecodeAttentionItem& item) {
    return item.score.enabled && item.add_scores;
  }

  AttentionContext& context_;
  const DecodeAttentionArgs& args_;
  const AttentionShape& shape_;
  const HeadLayout layout_;
  const AttentionKernels& kernels_;
  const int32_t group_;
  const int64_t partial_;  // floats of one head's partial result
  std::vector<Row> rows_;
  std::vector<Worker> workers_;
};

absl::Status Decode::Run() {
  context_.scratch.Reset();
  if (args_.items.empty()) return absl::OkStatus();
  KF_RETURN_IF_ERROR(Allocate());
  const int64_t items =
      rows_.back().first_item + int64_t{rows_.back().chunks} * shape_.kv_heads;
  context_.pool.ParallelFor(items, [this](int64_t i, int worker) {
    RunItem(i, workers_[static_cast<size_t>(worker)]);
  });
  return absl::OkStatus();
}

absl::Status Decode::Allocate() {
  ScratchArena& scratch = context_.scratch;
  int32_t last = 0;
  for (const DecodeAttentionItem& item : args_.items) {
    last = std::max(last, item.position);
  }
  context_.rope.Prepare(shape_, last);
  int64_t items = 0;
  for (const DecodeAttentionItem& item : args_.items) {
    KF_CHECK(item.held >= 0 && item.held <= item.budget);
    KF_CHECK(item.recent >= 0 && item.recent <= item.budget);
    const int32_t slots = item.held + 1;
    KF_CHECK(std::ssize(item.cache.pages) >= PagesFor(slots));
    Row row = {};
    row.chunks = (slots + kDecodeChunk - 1) / kDecodeChunk;
    row.first_item = items;
    items += int64_t{row.chunks} * shape_.kv_heads;
    KF_ASSIGN_OR_RETURN(float* cos_sin, scratch.Take<float>(shape_.head_dim));
    context_.rope.Row(item.position, cos_sin);
    row.cos_sin = cos_sin;
    KF_ASSIGN_OR_RETURN(row.partials,
                        scratch.Take<float>(int64_t{shape_.query_heads} *
                                            row.chunks * partial_));
    if (Scored(item)) {
      row.numerators_stride = int64_t{PagesFor(slots)} * kPageTokens;
      KF_ASSIGN_OR_RETURN(
          row.numerators,
          scratch.Take<float>(shape_.query_heads * row.numerators_stride));
    }
    KF_ASSIGN_OR_RETURN(row.open_chunks,
                        scratch.Take<std::atomic<int32_t>>(shape_.kv_heads));
    for (int32_t g = 0; g < shape_.kv_heads; ++g) {
      new (row.open_chunks + g) std::atomic<int32_t>(row.chunks);
    }
    rows_.push_back(row);
  }
  for (int i = 0; i < context_.pool.threads(); ++i) {
    Worker w = {};
    KF_ASSIGN_OR_RETURN(
        w.q, scratch.Take<uint32_t>(int64_t{group_} * layout_.steps));
    KF_ASSIGN_OR_RETURN(w.words, scratch.Take<NoiseWords>(group_));
    KF_ASSIGN_OR_RETURN(w.logits,
                        scratch.Take<float>(int64_t{group_} * kDecodeChunk));
    workers_.push_back(w);
  }
  return absl::OkStatus();
}

void Decode::RunItem(int64_t index, const Worker& worker) {
  const auto after = std::upper_bound(
      rows_.begin(), rows_.end(), index,
      [](int64_t i, const Row& row) { return i < row.first_item; });
  const auto row = static_cast<size_t>(after - rows_.begin()) - 1;
  const int64_t item = index - rows_[row].first_item;
  const auto head = static_cast<int32_t>(item / rows_[row].chunks);
  RunChunk(row, head, static_cast<int32_t>(item % rows_[row].chunks), worker);
  // The last chunk to end sees what the others wrote.
  if (rows_[row].open_chunks[head].fetch_sub(1, std::memory_order_acq_rel) ==
      1) {
    Combine(row, head);
  }
}

void Decode::RunChunk(size_t row,
                      int32_t head,
                      int32_t chunk,
                      const Worker& worker) {
  const DecodeAttentionItem& item = args_.items[row];
  const Row& memory = rows_[row];
  const int32_t first = chunk * kDecodeChunk;
  const int32_t slots = std::min(kDecodeChunk, item.held + 1 - first);
  HeadPages pages = MakeHeadPages(shape_, item.cache, head);
  const int32_t free_slot = item.free_slot[head];
  KF_CHECK(free_slot >= 0 && free_slot <= item.held);
  if (free_slot >= first && free_slot < first + slots) {
    const float* k =
        QkvOf(row) + int64_t{shape_.query_heads + head} * shape_.head_dim;
    kernels_.append({&layout_, k,
                     k + int64_t{shape_.kv_heads} * shape_.head_dim,
                     memory.cos_sin, BlockOf(pages, free_slot / kPageTokens),
                     free_slot % kPageTokens, item.position});
  }
  for (int32_t j = 0; j < group_; ++j) {
    const int32_t h = head * group_ + j;
    kernels_.pack_query(layout_, QkvOf(row) + int64_t{h} * shape_.head_dim,
                        memory.cos_sin, worker.q + int64_t{j} * layout_.steps);
    if (Scored(item)) {
      worker.words[j] =
          MakeNoiseWords(item.score, args_.layer, h, item.position);
    }
  }
  pages.pages += first / kPageTokens;
  DecodeChunk work = {};
  work.layout = &layout_;
  work.pages = pages;
  work.group = group_;
  work.slots = slots;
  work.q = worker.q;
  work.score = MakeScoreSpec(item.score);
  work.score.enabled = Scored(item);
  work.words = worker.words;
  work.logits = worker.logits;
  work.partial = PartialsOf(memory, head) + int64_t{chunk} * group_ * partial_;
  if (work.score.enabled) {
    work.numerators = NumeratorsOf(memory, head) + first;
    work.numerators_stride = memory.numerators_stride;
  }
  kernels_.decode_chunk(work);
}

void Decode::Combine(size_t row, int32_t head) {
  const DecodeAttentionItem& item = args_.items[row];
  const Row& memory = rows_[row];
  DecodeCombine work = {};
  work.layout = &layout_;
  work.pages = MakeHeadPages(shape_, item.cache, head);
  work.group = group_;
  work.slots = item.held + 1;
  work.partial = PartialsOf(memory, head);
  work.score = MakeScoreSpec(item.score);
  work.score.enabled = Scored(item);
  if (work.score.enabled) {
    work.numerators = NumeratorsOf(memory, head);
    work.numerators_stride = memory.numerators_stride;
  }
  work.out = args_.out + static_cast<int64_t>(row) * shape_.out_dim() +
             int64_t{head} * group_ * shape_.head_dim;
  work.evict = item.held + 1 > item.budget;
  work.last_candidate = item.position - item.recent;
  const int32_t victim = kernels_.decode_combine(work);
  KF_CHECK(!work.evict || victim >= 0);
  item.free_slot[head] = work.evict ? victim : item.held + 1;
}

}  // namespace

absl::Status DecodeAttention(AttentionContext& context,
                             const DecodeAttentionArgs& args) {
  return Decode(context, args).Run();
}

}  // namespace kf::cpu
