#include "tests/gpu/cache_rig.h"

#include <algorithm>
#include <cstddef>
#include <numeric>
#include <random>

#include "kernels/core/status.h"

namespace kf::gpu_bench {
namespace {

// Drawn once and repeated: nothing measured depends on the values.
constexpr int64_t kDrawn = int64_t{1} << 20;

int64_t PagesEach(int32_t keys) {
  return (int64_t{keys} + 1 + kPageTokens - 1) / kPageTokens;
}

ScoreOptions Scored(bool scored, uint32_t stream, float tau) {
  return {scored, NoiseKind::kGumbel, false, 1, stream, tau};
}

}  // namespace

absl::StatusOr<std::unique_ptr<Buffer>> RandomFloats(Backend& backend,
                                                     int64_t count) {
  std::mt19937 random(1);
  std::normal_distribution<float> normal;
  std::vector<float> drawn(static_cast<size_t>(std::min(count, kDrawn)));
  for (float& value : drawn) value = normal(random);
  KF_ASSIGN_OR_RETURN(
      auto buffer, backend.Allocate(static_cast<size_t>(count) * sizeof(float),
                                    "the benchmark's rows"));
  for (int64_t done = 0; done < count; done += kDrawn) {
    const auto part = std::span<const float>(drawn).first(
        static_cast<size_t>(std::min(count - done, kDrawn)));
    KF_RETURN_IF_ERROR(
        backend.Upload(reinterpret_cast<std::byte*>(buffer->as<float>() + done),
                       std::as_bytes(part)));
  }
  return buffer;
}

CacheRig::CacheRig(Backend& backend,
                   const AttentionShape& shape,
                   int32_t keys,
                   int32_t rows,
                   int64_t sets)
    : backend_(backend),
      shape_(shape),
      keys_(keys),
      rows_(rows),
      sets_(sets),
      pages_each_(PagesEach(keys)),
      position_(keys) {}

int64_t CacheRig::SetBytes(const Backend& backend,
                           const AttentionShape& shape,
                           int32_t keys,
                           int32_t rows) {
  return static_cast<int64_t>(backend.PageBytes(shape)) * PagesEach(keys) *
         rows;
}

absl::StatusOr<std::unique_ptr<CacheRig>> CacheRig::Create(
    Backend& backend,
    const AttentionShape& shape,
    int32_t keys,
    int32_t rows,
    int64_t sets) {
  std::unique_ptr<CacheRig> rig(new CacheRig(backend, shape, keys, rows, sets));
  KF_RETURN_IF_ERROR(rig->Fill());
  return rig;
}

absl::Status CacheRig::Fill() {
  // One sequence more: where a cut prompt goes.
  const int64_t sequences = sets_ * rows_ + 1;
  page_list_.resize(static_cast<size_t>(sequences * pages_each_));
  std::iota(page_list_.begin(), page_list_.end(), 0);
  KF_ASSIGN_OR_RETURN(
      pool_, backend_.Allocate(page_list_.size() * backend_.PageBytes(shape_),
                               "the benchmark's pages"));
  const std::vector<int32_t> slots(
      static_cast<size_t>(sequences * shape_.kv_heads), keys_);
  KF_ASSIGN_OR_RETURN(free_slots_,
                      backend_.Allocate(slots.size() * sizeof(int32_t),
                                        "the benchmark's free slots"));
  KF_RETURN_IF_ERROR(
      backend_.Upload(free_slots_->data(), std::as_bytes(std::span(slots))));
  KF_ASSIGN_OR_RETURN(prompt_qkv_,
                      RandomFloats(backend_, keys_ * shape_.qkv_dim()));
  KF_ASSIGN_OR_RETURN(prompt_out_,
                      RandomFloats(backend_, keys_ * shape_.out_dim()));
  KF_ASSIGN_OR_RETURN(step_qkv_,
                      RandomFloats(backend_, rows_ * shape_.qkv_dim()));
  KF_ASSIGN_OR_RETURN(step_out_,
                      RandomFloats(backend_, rows_ * shape_.out_dim()));
  KF_RETURN_IF_ERROR(Prompt(/*scored=*/true));
  std::vector<PageCopy> copies;
  const int64_t prompt_pages = (int64_t{keys_} + kPageTokens - 1) / kPageTokens;
  for (int64_t sequence = 1; sequence < sequences; ++sequence) {
    for (int64_t page = 0; page < prompt_pages; ++page) {
      copies.push_back({static_cast<int32_t>(page),
                        static_cast<int32_t>(sequence * pages_each_ + page)});
    }
  }
  return backend_.CopyPages(shape_, pool_->data(), copies);
}

PageSpan CacheRig::PagesOf(int64_t sequence) const {
  return {pool_->data(),
          std::span(page_list_)
              .subspan(static_cast<size_t>(sequence * pages_each_),
                       static_cast<size_t>(pages_each_))};
}

absl::Status CacheRig::Step(Kind kind) {
  const bool evicts = kind == Kind::kScoreAndEvict;
  ++position_;
  std::vector<DecodeAttentionItem> items;
  for (int32_t row = 0; row < rows_; ++row) {
    const int64_t sequence = next_set_ * rows_ + row;
    items.push_back(
        {.position = position_,
         .held = keys_,
         .budget = keys_,
         .recent = static_cast<int32_t>(0.3 * keys_),
         .cache = PagesOf(sequence),
         .free_slot = free_slots_->as<int32_t>() + sequence * shape_.kv_heads,
         .score = Scored(evicts, 1, 1.25F),
         .add_scores = evicts,
         .defer_eviction = !evicts});
  }
  next_set_ = (next_set_ + 1) % sets_;
  return backend_.DecodeAttention({.shape = shape_,
                                   .layer = 0,
                                   .qkv = step_qkv_->as<float>(),
                                   .out = step_out_->as<float>(),
                                   .items = items});
}

absl::Status CacheRig::Prompt(bool scored) {
  const PromptAttentionItem item = {.prompt_tokens = keys_,
                                    .first_row = 0,
                                    .rows = keys_,
                                    .batch_row = 0,
                                    .keys = PagesOf(0),
                                    .score = Scored(scored, 0, 1.0F)};
  return backend_.PromptAttention({.shape = shape_,
                                   .layer = 0,
                                   .qkv = prompt_qkv_->as<float>(),
                                   .out = prompt_out_->as<float>(),
                                   .items = {&item, 1}});
}

absl::Status CacheRig::Compact() {
  const int64_t spare = sets_ * rows_;
  const CompactLayer layer = {
      .from = PagesOf(0),
      .to = PagesOf(spare),
      .free_slot = free_slots_->as<int32_t>() + spare * shape_.kv_heads};
  const int32_t budget = std::max(keys_ / 2, 1);
  return backend_.Compact({.shape = shape_,
                           .prompt_tokens = keys_,
                           .budget = budget,
                           .recent = static_cast<int32_t>(0.3 * budget),
                           .layers = {&layer, 1}});
}

}  // namespace kf::gpu_bench
