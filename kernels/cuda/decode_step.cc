#include "kernels/cuda/decode_step.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "kernels/core/status.h"
#include "kernels/cuda/attention_calls.h"

namespace kf::cuda {
namespace {

bool HasGraph(const DecodeAttentionItem& item) {
  return item.bounds.pages.empty() && !item.rank_positions &&
         !item.defer_eviction && item.row_scores == nullptr && !item.continues;
}

int32_t RoundUpToPower(int32_t x) {
  return static_cast<int32_t>(std::bit_ceil(static_cast<uint32_t>(x)));
}

}  // namespace

void DecodeStep::Begin(int64_t rows, int64_t capacity) {
  Clear();
  active_ = graphs_wanted_ && rows > 0;
  rows_ = rows;
  bucket_ =
      std::min(static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(rows))),
               std::max(rows, capacity));
}

void DecodeStep::Clear() {
  active_ = false;
  ops_.clear();
  ids_.clear();
  items_.clear();
  first_page_.clear();
  pages_.clear();
}

bool DecodeStep::Takes(std::span<const DecodeAttentionItem> items) const {
  return Takes(std::ssize(items)) &&
         std::all_of(items.begin(), items.end(), HasGraph);
}

void DecodeStep::Add(const EmbedOp& op, std::span<const int32_t> ids) {
  KF_CHECK(ids_.empty());  // one a step
  ids_.assign(ids.begin(), ids.end());
  ops_.emplace_back(op);
}

void DecodeStep::Add(const DecodeOp& op,
                     std::span<const DecodeAttentionItem> items) {
  for (const DecodeAttentionItem& item : items) {
    first_page_.push_back(pages_.size());
    const auto pages = static_cast<size_t>(PagesFor(item.held + 1));
    KF_CHECK(pages <= item.cache.pages.size());
    pages_.insert(pages_.end(), item.cache.pages.begin(),
                  item.cache.pages.begin() + static_cast<ptrdiff_t>(pages));
    items_.push_back(FlatItem(item));
  }
  ops_.emplace_back(op);
}

absl::Status DecodeStep::Flush() {
  if (!active_) return absl::OkStatus();
  active_ = false;
  if (ops_.empty()) return absl::OkStatus();
  Launching launching;
  KF_RETURN_IF_ERROR(Send(rows_, launching));
  KF_RETURN_IF_ERROR(Launch(launching));
  Clear();
  return ToStatus(cudaGetLastError(), "a decode step");
}

absl::Status DecodeStep::End() {
  if (!active_) return absl::OkStatus();
  active_ = false;
  if (ops_.empty()) return absl::OkStatus();
  Launching launching;
  KF_RETURN_IF_ERROR(Send(bucket_, launching));
  int32_t chunks = 1;
  for (const std::vector<DecodeGroup>& groups : launching.layers) {
    if (groups.size() > 1) {  // more than the working memory: no graph has it
      KF_RETURN_IF_ERROR(Launch(launching));
      Clear();
      return ToStatus(cudaGetLastError(), "a decode step");
    }
    chunks = std::max(chunks, groups.front().plan.max_chunks);
  }
  const GraphBucket bucket{bucket_, RoundUpToPower(chunks)};
  // From here on nothing of the plans but what the bucket fixes.
  for (std::vector<DecodeGroup>& groups : launching.layers) {
    DecodePlan& plan = groups.front().plan;
    KF_CHECK(plan.queries == 0 && plan.ranks == 0 && !plan.quest);
    plan = {.max_chunks = bucket.chunks};
  }
  KF_RETURN_IF_ERROR(graphs_.Run(bucket, ops_, launching.ids, launching.memory,
                                 [&] { return Launch(launching); }));
  Clear();
  return ToStatus(cudaGetLastError(), "a decode step");
}

// Copies the step's descriptors to the device, for `rows` >= rows_ rows, and
// finds working memory.
absl::Status DecodeStep::Send(int64_t rows, Launching& launching) {
  const auto count = static_cast<size_t>(rows);
  const size_t layers = items_.size() / static_cast<size_t>(rows_);
  Parts parts;
  const size_t ids_at = parts.Take(count * sizeof(int32_t));
  const size_t items_at = parts.Take(layers * ArrayBytes<DecodeItem>(count));
  const size_t pages_at = parts.Take(pages_.size() * sizeof(int32_t));
  KF_ASSIGN_OR_RETURN(std::byte* const host, staging_.Begin(parts.bytes()));
  std::byte* const device = staging_.device();

  ids_.resize(count, 0);
  std::memcpy(host + ids_at, ids_.data(), count * sizeof(int32_t));
  if (!pages_.empty()) {
    std::memcpy(host + pages_at, pages_.data(),
                pages_.size() * sizeof(int32_t));
  }
  launching.rows = rows;
  launching.ids = reinterpret_cast<const int32_t*>(device + ids_at);
  launching.items = device + items_at;
  const int64_t words = PlaceItems(
      rows, host + items_at,
      reinterpret_cast<const int32_t*>(device + pages_at), launching);
  KF_RETURN_IF_ERROR(staging_.Send(parts.bytes()));

  size_t bytes = static_cast<size_t>(words) * sizeof(uint32_t);
  for (const StepOp& op : ops_) {
    if (const auto* product = std::get_if<ProductOp>(&op)) {
      bytes =
          std::max(bytes, DenseCalls::WorkspaceBytes(*product->weights, rows));
    }
  }
  KF_ASSIGN_OR_RETURN(unsigned char* memory, workspace_.GetWithRoom(bytes));
  launching.memory = reinterpret_cast<uint32_t*>(memory);
  return absl::OkStatus();
}

// The items of each layer, with idle rows, to `to`; returns the words of
// working memory that the largest layer needs.
int64_t DecodeStep::PlaceItems(int64_t rows,
                               std::byte* to,
                               const int32_t* device_pages,
                               Launching& launching) {
  const auto count = static_cast<size_t>(rows);
  size_t first = 0;
  int64_t words = 0;
  for (const StepOp& op : ops_) {
    const auto* decode = std::get_if<DecodeOp>(&op);
    if (decode == nullptr) continue;
    batch_.clear();
    for (size_t i = first; i < first + static_cast<size_t>(rows_); ++i) {
      DecodeItem item = items_[i];
      item.cache.pages = device_pages + first_page_[i];
      batch_.push_back(item);
    }
    first += static_cast<size_t>(rows_);
    DecodeItem idle;
    idle.idle = true;
    batch_.resize(count, idle);
    launching.layers.push_back(
        PlanDecodeGroups(decode->shape, batch_, most_words_));
    for (const DecodeGroup& group : launching.layers.back()) {
      words = std::max(words, group.plan.words);
    }
    std::memcpy(to, batch_.data(), count * sizeof(DecodeItem));
    to += ArrayBytes<DecodeItem>(count);
  }
  return words;
}

absl::Status DecodeStep::Launch(const Launching& launching) {
  const int64_t rows = launching.rows;
  const std::byte* items = launching.items;
  size_t layer = 0;
  for (const StepOp& op : ops_) {
    if (const auto* embed = std::get_if<EmbedOp>(&op)) {
      dense_.Embed(*embed, launching.ids, rows);
    } else if (const auto* norm = std::get_if<NormOp>(&op)) {
      dense_.Norm(*norm, rows);
    } else if (const auto* activation = std::get_if<SwiGluOp>(&op)) {
      dense_.SwiGlu(*activation, rows);
    } else if (const auto* product = std::get_if<ProductOp>(&op)) {
      KF_RETURN_IF_ERROR(dense_.Product(*product, rows));
    } else {
      const auto& decode = std::get<DecodeOp>(op);
      DecodeWork work;
      work.shape = decode.shape;
      work.layer = decode.layer;
      work.frequencies = decode.frequencies;
      work.qkv = decode.qkv;
      work.out = decode.out;
      work.items = reinterpret_cast<const DecodeItem*>(items);
      work.memory = launching.memory;
      DecodeAttention(device_.stream(), work, launching.layers[layer++]);
      items += ArrayBytes<DecodeItem>(static_cast<size_t>(rows));
    }
  }
  return absl::OkStatus();
}

}  // namespace kf::cuda
