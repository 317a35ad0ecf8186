#include "kernels/cuda/decode_attention.h"

#include <algorithm>

#include "kernels/core/status.h"

namespace kf::cuda {
namespace {

// Hands out words of the working memory, each part 16-byte aligned.
class Words {
 public:
  int64_t Take(int64_t count) {
    const int64_t at = next_;
    next_ += (count + 3) / 4 * 4;
    return at;
  }
  int64_t total() const { return next_; }

 private:
  int64_t next_ = 0;
};

void CheckItem(const DecodeItem& item) {
  KF_CHECK(item.held >= 0 && item.held <= item.budget);
  KF_CHECK(item.held <= item.position);
  KF_CHECK(item.recent >= 0 && item.recent <= item.budget);
  KF_CHECK(item.row_scores == nullptr || item.defer_eviction);
  KF_CHECK(item.read_pages >= 0);
  if (item.bounds.pages == nullptr) return;
  KF_CHECK(!item.score.enabled && !item.rank_positions);
  KF_CHECK(item.held == item.position && item.held < item.budget);
}

void CheckRun(std::span<const DecodeItem> items, size_t i) {
  const DecodeItem& item = items[i];
  KF_CHECK(item.held == item.position && item.held < item.budget);
  KF_CHECK(!item.score.enabled && !item.rank_positions && !item.defer_eviction);
  if (!item.continues) return;
  KF_CHECK(i > 0);
  KF_CHECK(item.position == items[i - 1].position + 1);
  KF_CHECK(item.free_slot == items[i - 1].free_slot);
}

}  // namespace

DecodePlan PlanDecode(const DecodeShape& shape, std::span<DecodeItem> items) {
  const PageLayout& layout = shape.layout;
  KF_CHECK(layout.kv_heads > 0 && shape.query_heads % layout.kv_heads == 0);
  KF_CHECK(shape.rotary_dim % 2 == 0 && shape.rotary_dim <= layout.head_dim);
  DecodePlan plan;
  Words words;
  const int64_t kv_heads = layout.kv_heads;
  plan.queries = words.Take(std::ssize(items) * shape.query_heads *
                            layout.padded_dim * layout.element_bytes / 4);
  for (size_t i = 0; i < items.size(); ++i) {
    DecodeItem& item = items[i];
    if (item.idle) {
      item.slots = 0;
      continue;
    }
    item.continued = i + 1 < items.size() && items[i + 1].continues;
    CheckItem(item);
    if (item.continues || item.continued) CheckRun(items, i);
    item.slots = item.held + 1;
    item.numerators = item.ranks = item.chosen = item.bound_keys = kNoMemory;
    if (item.bounds.pages != nullptr) {
      plan.quest = true;
      const int32_t pages = PagesFor(item.slots);
      if (item.read_pages > 0 && item.read_pages < pages) {
        item.slots -= (pages - item.read_pages) * kSlots;
        item.chosen = words.Take(kv_heads * item.read_pages);
        item.bound_keys = words.Take(kv_heads * pages);
      }
    }
    const int32_t chunks = DecodeChunks(item.slots);
    const int64_t parts = int64_t{shape.query_heads} * chunks;
    item.stats = words.Take(parts * 4);
    item.sums = words.Take(parts * layout.padded_dim);
    if (item.score.enabled) item.numerators = words.Take(parts * kDecodeChunk);
    if (item.rank_positions) {
      plan.ranks = std::max(plan.ranks, item.slots);
      item.ranks = words.Take(kv_heads * item.slots);
    }
    plan.max_chunks = std::max(plan.max_chunks, chunks);
  }
  if (plan.ranks > 0) {
    plan.rotations = words.Take(int64_t{plan.ranks} * shape.rotary_dim);
  }
  plan.words = words.total();
  return plan;
}

std::vector<DecodeGroup> PlanDecodeGroups(const DecodeShape& shape,
                                          std::span<DecodeItem> items,
                                          int64_t most_words) {
  const DecodePlan whole = PlanDecode(shape, items);
  if (most_words == 0 || whole.words <= most_words) {
    return {{.first = 0, .rows = items.size(), .plan = whole}};
  }
  std::vector<DecodeGroup> groups;
  int64_t words = 0;  // of the last group: no less than its plan's
  for (size_t i = 0; i < items.size(); ++i) {
    DecodeItem alone = items[i];
    alone.continues = false;
    const int64_t more = PlanDecode(shape, {&alone, 1}).words;
    if (groups.empty() || words + more > most_words) {
      groups.push_back({.first = i, .rows = 0, .plan = {}});
      words = 0;
      // A run that is cut here: its first part leaves the slot where this token
      // goes, as one that begins here would find it.
      items[i].continues = false;
    }
    words += more;
    ++groups.back().rows;
  }
  for (DecodeGroup& group : groups) {
    group.plan = PlanDecode(shape, items.subspan(group.first, group.rows));
  }
  return groups;
}

void DecodeAttention(gpu::Stream stream,
                     const DecodeWork& work,
                     std::span<const DecodeGroup> groups) {
  const DecodeShape& shape = work.shape;
  const int64_t out_dim = int64_t{shape.query_heads} * shape.layout.head_dim;
  const int64_t qkv_dim =
      out_dim + int64_t{2} * shape.layout.kv_heads * shape.layout.head_dim;
  for (const DecodeGroup& group : groups) {
    const auto first = static_cast<int64_t>(group.first);
    DecodeWork part = work;
    part.plan = group.plan;
    part.rows = static_cast<int32_t>(group.rows);
    part.qkv += first * qkv_dim;
    part.out += first * out_dim;
    part.items += first;
    DecodeAttention(stream, part);
  }
}

void DecodeAttention(gpu::Stream stream, const DecodeWork& work) {
  if (work.rows == 0) return;
  DecodeAppend(stream, work);
  if (work.plan.ranks > 0) DecodeRanks(stream, work);
  if (work.plan.quest) DecodeChoosePages(stream, work);
  DecodeSplit(stream, work);
  DecodeMerge(stream, work);
}

}  // namespace kf::cuda
