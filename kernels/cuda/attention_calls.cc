#include "kernels/cuda/attention_calls.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "kernels/core/status.h"
#include "kernels/cuda/compact.h"
#include "kernels/cuda/decode_attention.h"
#include "kernels/cuda/evict.h"
#include "kernels/cuda/page_copy.h"
#include "kernels/cuda/prompt_append.h"
#include "kernels/cuda/prompt_attention.h"
#include "kernels/cuda/prompt_score.h"
#include "kernels/cuda/quest.h"
#include "kernels/cuda/work_limits.h"

namespace kf::cuda {
namespace {

// Staged bytes of the first pages of a list, enough for `slots`.
size_t ListBytes(int32_t slots) {
  return PartBytes(static_cast<size_t>(PagesFor(slots)) * sizeof(int32_t));
}

unsigned char* Base(const PageSpan& span) {
  return reinterpret_cast<unsigned char*>(span.base);
}

// Pages that a prompt item reads: up to its last row.
int32_t EndOf(const PromptAttentionItem& item) {
  return item.first_row + item.rows;
}

bool InPlace(const CompactLayer& layer) {
  return layer.from.base == layer.to.base && !layer.to.pages.empty() &&
         layer.from.pages.front() == layer.to.pages.front();
}

int32_t BoundSlots(const DecodeAttentionItem& item) {
  return PagesFor(item.held + 1);
}

}  // namespace

PageLayout LayoutOf(const AttentionShape& shape) {
  KF_CHECK(PaddedHeadDim(shape.head_dim) != 0);
  return MakePageLayout(shape.kv_heads, shape.head_dim,
                        shape.cache_dtype == DType::kF32 ? 4 : 2);
}

PageList AttentionCalls::Stage(const PageSpan& span, int32_t slots) {
  const auto pages = static_cast<size_t>(PagesFor(slots));
  KF_CHECK(pages <= span.pages.size());
  return {Base(span), staging_.Add(span.pages.first(pages))};
}

absl::StatusOr<const double*> AttentionCalls::Frequencies(
    const AttentionShape& shape) {
  std::unique_ptr<DeviceBuffer>& known =
      frequencies_[{shape.rope_base, shape.rotary_dim}];
  if (known != nullptr) return known->as<double>();
  std::vector<double> values;
  for (int32_t i = 0; i < shape.rotary_dim; i += 2) {
    values.push_back(
        std::pow(shape.rope_base, -static_cast<double>(i) / shape.rotary_dim));
  }
  const auto bytes = std::as_bytes(std::span<const double>(values));
  KF_ASSIGN_OR_RETURN(auto buffer,
                      DeviceBuffer::Allocate(device_, bytes.size(), "rotary"));
  KF_RETURN_IF_ERROR(ToStatus(cudaMemcpy(buffer->data(), bytes.data(),
                                         bytes.size(), cudaMemcpyHostToDevice),
                              "cudaMemcpy of rotary frequencies"));
  known = std::move(buffer);
  return known->as<double>();
}

absl::Status AttentionCalls::Reserve(const AttentionShape& shape,
                                     int64_t most_decode_words) {
  most_words_ = most_decode_words;
  return Frequencies(shape).status();
}

absl::Status AttentionCalls::Prompt(const PromptAttentionArgs& args) {
  if (args.items.empty()) return absl::OkStatus();
  const AttentionShape& shape = args.shape;
  PromptArgs work;
  work.layout = LayoutOf(shape);
  work.query_heads = shape.query_heads;
  work.rotary_dim = shape.rotary_dim;
  work.layer = args.layer;
  work.scale =
      static_cast<float>(1.0 / std::sqrt(static_cast<double>(shape.head_dim)));
  KF_ASSIGN_OR_RETURN(work.frequencies, Frequencies(shape));

  size_t staged = ArrayBytes<PromptItem>(args.items.size());
  for (const PromptAttentionItem& item : args.items) {
    staged += ListBytes(EndOf(item));
  }
  KF_RETURN_IF_ERROR(staging_.Begin(staged));
  std::vector<PromptItem> items;
  int64_t rows = 0;
  int64_t ranked_pages = 0;
  for (const PromptAttentionItem& item : args.items) {
    PromptItem flat;
    flat.keys = Stage(item.keys, EndOf(item));
    flat.batch_row = item.batch_row;
    flat.ranked_page = ranked_pages;
    flat.score = item.score;
    flat.first_row = item.first_row;
    flat.rows = item.rows;
    flat.score_first_row = item.score_first_row;
    flat.rank_positions = item.rank_positions;
    items.push_back(flat);
    rows = std::max(rows, item.batch_row + item.rows);
    work.max_rows = std::max(work.max_rows, item.rows);
    work.max_end = std::max(work.max_end, EndOf(item));
    if (item.rank_positions) {
      work.any_ranked = true;
      ranked_pages += PagesFor(EndOf(item));
    }
    work.any_scored |= item.score.enabled && item.score_first_row < EndOf(item);
  }
  work.items = staging_.Add(std::span<const PromptItem>(items));
  work.item_count = static_cast<int32_t>(items.size());
  KF_RETURN_IF_ERROR(staging_.Send());

  const PromptPlaces places = PlacePrompt(work.layout, shape.query_heads, rows,
                                          work.any_scored, ranked_pages);
  KF_ASSIGN_OR_RETURN(unsigned char* memory, workspace_.Get(places.bytes));
  work.qkv = args.qkv;
  work.out = args.out;
  work.queries = memory + places.queries;
  work.score_rows = reinterpret_cast<ScoreRow*>(memory + places.score_rows);
  work.ranked_keys = memory + places.ranked_keys;
  AppendPrompt(device_.stream(), work);
  RotateRankedKeys(device_.stream(), work);
  AttendPrompt(device_.stream(), work);
  if (work.any_scored) ScorePrompt(device_.stream(), work);
  return absl::OkStatus();
}

absl::Status AttentionCalls::Compact(const CompactArgs& args) {
  if (args.layers.empty()) return absl::OkStatus();
  KF_CHECK(args.prompt_tokens >= 1 && args.budget >= 1 && args.recent >= 0 &&
           args.recent <= args.budget);
  const int32_t kept = std::min(args.budget, args.prompt_tokens);
  CompactWork work;
  work.layout = LayoutOf(args.shape);
  work.layers = static_cast<int32_t>(args.layers.size());
  work.tokens = args.prompt_tokens;
  work.budget = args.budget;
  work.recent = args.recent;
  work.shared = args.shared;
  work.in_place = InPlace(args.layers.front());
  work.age = args.age;
  work.score_factor = args.score_factor;

  KF_RETURN_IF_ERROR(staging_.Begin(
      ArrayBytes<CompactItem>(args.layers.size()) +
      args.layers.size() * (ListBytes(args.prompt_tokens) + ListBytes(kept))));
  std::vector<CompactItem> items;
  for (const CompactLayer& layer : args.layers) {
    KF_CHECK(InPlace(layer) == work.in_place);
    CompactItem item;
    item.from = Stage(layer.from, args.prompt_tokens);
    item.to = Stage(layer.to, kept);
    item.free_slot = layer.free_slot;
    items.push_back(item);
  }
  work.items = staging_.Add(std::span<const CompactItem>(items));
  KF_RETURN_IF_ERROR(staging_.Send());

  const size_t choices =
      args.shared
          ? 1
          : args.layers.size() * static_cast<size_t>(args.shape.kv_heads);
  Parts parts;
  const size_t kept_at =
      parts.Take(choices * static_cast<size_t>(kept) * sizeof(int32_t));
  const size_t sums_at = parts.Take(
      args.shared ? static_cast<size_t>(args.prompt_tokens) * sizeof(float)
                  : 0);
  KF_ASSIGN_OR_RETURN(unsigned char* memory, workspace_.Get(parts.bytes()));
  work.kept = reinterpret_cast<int32_t*>(memory + kept_at);
  work.sums = reinterpret_cast<float*>(memory + sums_at);
  cuda::Compact(device_.stream(), work);
  return absl::OkStatus();
}

DecodeItem FlatItem(const DecodeAttentionItem& item) {
  DecodeItem flat;
  flat.cache.base = Base(item.cache);
  flat.free_slot = item.free_slot;
  flat.row_scores = item.row_scores;
  flat.score = item.score;
  flat.score.enabled = item.score.enabled && item.add_scores;
  flat.age = item.age;
  flat.position = item.position;
  flat.held = item.held;
  flat.budget = item.budget;
  flat.recent = item.recent;
  flat.read_pages = item.read_pages;
  flat.rank_positions = item.rank_positions;
  flat.defer_eviction = item.defer_eviction;
  flat.continues = item.continues;
  return flat;
}

absl::StatusOr<DecodeOp> AttentionCalls::MakeDecodeOp(
    const DecodeAttentionArgs& args) {
  DecodeOp op;
  op.shape = {LayoutOf(args.shape), args.shape.query_heads,
              args.shape.rotary_dim};
  KF_ASSIGN_OR_RETURN(op.frequencies, Frequencies(args.shape));
  op.layer = args.layer;
  op.qkv = args.qkv;
  op.out = args.out;
  return op;
}

absl::Status AttentionCalls::Decode(const DecodeAttentionArgs& args) {
  if (args.items.empty()) return absl::OkStatus();
  KF_ASSIGN_OR_RETURN(const DecodeOp op, MakeDecodeOp(args));
  size_t staged = ArrayBytes<DecodeItem>(args.items.size());
  for (const DecodeAttentionItem& item : args.items) {
    staged += ListBytes(item.held + 1);
    if (!item.bounds.pages.empty()) staged += ListBytes(BoundSlots(item));
  }
  KF_RETURN_IF_ERROR(staging_.Begin(staged));
  std::vector<DecodeItem> items;
  for (const DecodeAttentionItem& item : args.items) {
    DecodeItem flat = FlatItem(item);
    flat.cache = Stage(item.cache, item.held + 1);
    if (!item.bounds.pages.empty()) {
      flat.bounds = Stage(item.bounds, BoundSlots(item));
    }
    items.push_back(flat);
  }
  DecodeWork work;
  work.shape = op.shape;
  const std::vector<DecodeGroup> groups =
      PlanDecodeGroups(work.shape, items, most_words_);
  int64_t words = 0;
  for (const DecodeGroup& group : groups) {
    words = std::max(words, group.plan.words);
  }
  work.items = staging_.Add(std::span<const DecodeItem>(items));
  KF_RETURN_IF_ERROR(staging_.Send());
  KF_ASSIGN_OR_RETURN(
      unsigned char* memory,
      workspace_.Get(static_cast<size_t>(words) * sizeof(uint32_t)));
  work.layer = op.layer;
  work.frequencies = op.frequencies;
  work.qkv = op.qkv;
  work.out = op.out;
  work.memory = reinterpret_cast<uint32_t*>(memory);
  DecodeAttention(device_.stream(), work, groups);
  return absl::OkStatus();
}

absl::Status AttentionCalls::AddRowScores(const AddRowScoresArgs& args) {
  KF_CHECK(!args.layer.caches.empty());
  const size_t caches = args.layer.caches.size();
  KF_RETURN_IF_ERROR(staging_.Begin(
      ArrayBytes<PageList>(caches) + caches * ListBytes(args.held + 1) +
      ArrayBytes<const float*>(args.row_scores.size())));
  std::vector<PageList> lists;
  for (const PageSpan& cache : args.layer.caches) {
    lists.push_back(Stage(cache, args.held + 1));
  }
  AddRowScoresWork work;
  work.layout = LayoutOf(args.shape);
  work.held = args.held;
  work.caches = staging_.Add(std::span<const PageList>(lists));
  work.cache_count = static_cast<int32_t>(caches);
  work.row_scores = staging_.Add(args.row_scores);
  work.row_count = static_cast<int32_t>(args.row_scores.size());
  KF_RETURN_IF_ERROR(staging_.Send());
  cuda::AddRowScores(device_.stream(), work);
  return absl::OkStatus();
}

absl::Status AttentionCalls::Evict(const EvictArgs& args) {
  if (args.layers.empty()) return absl::OkStatus();
  EvictWork work;
  work.layout = LayoutOf(args.shape);
  work.layers = static_cast<int32_t>(args.layers.size());
  work.position = args.position;
  work.held = args.held;
  work.budget = args.budget;
  work.recent = args.recent;
  work.shared = args.shared;
  work.age = args.age;
  KF_RETURN_IF_ERROR(
      staging_.Begin(ArrayBytes<EvictItem>(args.layers.size()) +
                     args.layers.size() * ListBytes(args.held + 1)));
  std::vector<EvictItem> items;
  for (const SharedLayer& layer : args.layers) {
    EvictItem item;
    item.cache = Stage(layer.caches.front(), args.held + 1);
    item.free_slot = layer.free_slot;
    items.push_back(item);
  }
  work.items = staging_.Add(std::span<const EvictItem>(items));
  KF_RETURN_IF_ERROR(staging_.Send());
  KF_ASSIGN_OR_RETURN(
      unsigned char* memory,
      workspace_.Get(static_cast<size_t>(args.held + 1) * sizeof(float)));
  work.sums = reinterpret_cast<float*>(memory);
  cuda::Evict(device_.stream(), work);
  return absl::OkStatus();
}

absl::Status AttentionCalls::CopyPages(const AttentionShape& shape,
                                       std::byte* base,
                                       std::span<const PageCopy> copies) {
  if (copies.empty()) return absl::OkStatus();
  KF_RETURN_IF_ERROR(staging_.Begin(ArrayBytes<PagePair>(copies.size())));
  std::vector<PagePair> pairs;
  for (const PageCopy& copy : copies) pairs.push_back({copy.from, copy.to});
  const PagePair* staged = staging_.Add(std::span<const PagePair>(pairs));
  KF_RETURN_IF_ERROR(staging_.Send());
  cuda::CopyPages(device_.stream(), LayoutOf(shape),
                  reinterpret_cast<unsigned char*>(base), staged,
                  static_cast<int32_t>(pairs.size()));
  return absl::OkStatus();
}

absl::Status AttentionCalls::BoundPages(const AttentionShape& shape,
                                        int32_t tokens,
                                        const PageSpan& cache,
                                        const PageSpan& bounds) {
  const int32_t pages = PagesFor(tokens);
  KF_RETURN_IF_ERROR(staging_.Begin(ListBytes(tokens) + ListBytes(pages)));
  const PageList keys = Stage(cache, tokens);
  const PageList limits = Stage(bounds, pages);
  KF_RETURN_IF_ERROR(staging_.Send());
  cuda::BoundPages(device_.stream(), LayoutOf(shape), tokens, keys, limits);
  return absl::OkStatus();
}

absl::StatusOr<std::vector<HeldTokens>> AttentionCalls::ReadHeld(
    const AttentionShape& shape,
    const PageSpan& cache,
    int32_t held,
    const int32_t* free_slot) {
  // The free slot's page need not be there, if it is the last.
  const int32_t slots =
      std::min(held + 1, static_cast<int32_t>(cache.pages.size()) * kSlots);
  KF_CHECK(slots >= held);
  if (slots == 0) {
    return std::vector<HeldTokens>(static_cast<size_t>(shape.kv_heads));
  }
  KF_RETURN_IF_ERROR(staging_.Begin(ListBytes(slots)));
  const PageList keys = Stage(cache, slots);
  KF_RETURN_IF_ERROR(staging_.Send());
  const auto heads = static_cast<size_t>(shape.kv_heads);
  const size_t values = heads * static_cast<size_t>(slots);
  Parts parts;
  const size_t positions_at = parts.Take(values * sizeof(int32_t));
  const size_t scores_at = parts.Take(values * sizeof(float));
  KF_ASSIGN_OR_RETURN(unsigned char* memory, workspace_.Get(parts.bytes()));
  GatherHeld(device_.stream(), LayoutOf(shape), keys, slots, free_slot,
             reinterpret_cast<int32_t*>(memory + positions_at),
             reinterpret_cast<float*>(memory + scores_at));
  std::vector<int32_t> positions(values);
  std::vector<float> scores(values);
  const auto download = [&](void* to, const void* from, size_t bytes) {
    return ToStatus(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToHost,
                                    device_.stream()),
                    "cudaMemcpyAsync of held tokens");
  };
  KF_RETURN_IF_ERROR(download(positions.data(), memory + positions_at,
                              values * sizeof(int32_t)));
  KF_RETURN_IF_ERROR(
      download(scores.data(), memory + scores_at, values * sizeof(float)));
  KF_RETURN_IF_ERROR(device_.Wait());

  std::vector<HeldTokens> result(heads);
  std::vector<int32_t> order;
  for (size_t head = 0; head < heads; ++head) {
    const size_t first = head * static_cast<size_t>(slots);
    order.resize(static_cast<size_t>(slots));
    std::iota(order.begin(), order.end(), 0);
    std::erase_if(order, [&](int32_t slot) {
      return positions[first + static_cast<size_t>(slot)] < 0;
    });
    std::sort(order.begin(), order.end(), [&](int32_t a, int32_t b) {
      return positions[first + static_cast<size_t>(a)] <
             positions[first + static_cast<size_t>(b)];
    });
    for (const int32_t slot : order) {
      result[head].positions.push_back(
          positions[first + static_cast<size_t>(slot)]);
      result[head].scores.push_back(scores[first + static_cast<size_t>(slot)]);
    }
  }
  return result;
}

}  // namespace kf::cuda
