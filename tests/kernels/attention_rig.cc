#include "tests/kernels/attention_rig.h"

#include <algorithm>
#include <cstring>
#include <numeric>

#include "gtest/gtest.h"
#include "kernels/core/status.h"
#include "kernels/cpu/simd_level.h"

namespace kf::testing {

std::vector<std::string> SimdLevelNames() {
  std::vector<std::string> names;
  for (const cpu::SimdLevel level : cpu::AvailableSimdLevels()) {
    names.emplace_back(cpu::NameOf(level));
  }
  return names;
}

std::unique_ptr<Backend> MakeCpu(const std::string& simd, int threads) {
  auto backend =
      CreateBackend({.name = "cpu", .threads = threads, .simd = simd});
  KF_CHECK(backend.ok());
  return *std::move(backend);
}

std::unique_ptr<Buffer> NanBuffer(Backend& backend, size_t bytes) {
  auto buffer = backend.Allocate(bytes, "test memory");
  KF_CHECK(buffer.ok());
  std::memset((*buffer)->data(), 0xFF, bytes);
  return *std::move(buffer);
}

Sequence::Sequence(Backend& backend, const SequenceOptions& options)
    : backend_(backend), options_(options) {
  const auto pages_for = [](int32_t slots) {
    return static_cast<size_t>((slots + kPageTokens - 1) / kPageTokens);
  };
  const int32_t most =
      std::min(options.budget, options.prompt + options.max_steps);
  const size_t prompt_pages = pages_for(options.prompt);
  const size_t cache_pages = pages_for(most + 1);
  std::vector<int32_t> order(prompt_pages + cache_pages + 3);
  std::iota(order.begin(), order.end(), 0);
  std::shuffle(order.begin(), order.end(), std::mt19937(options.data_seed));
  const auto middle = order.begin() + static_cast<std::ptrdiff_t>(prompt_pages);
  prompt_list_.assign(order.begin(), middle);
  cache_list_.assign(middle, middle + static_cast<std::ptrdiff_t>(cache_pages));
  pool_ = NanBuffer(backend, order.size() * backend.PageBytes(options.shape));
  free_slot_ = NanBuffer(
      backend, static_cast<size_t>(options.shape.kv_heads) * sizeof(int32_t));
}

std::vector<float> Sequence::RowAt(int32_t position) const {
  if (options_.rows) return options_.rows(position);
  std::mt19937 random(options_.data_seed * 1000003U +
                      static_cast<uint32_t>(position));
  std::normal_distribution<float> normal;
  std::vector<float> row(static_cast<size_t>(options_.shape.qkv_dim()));
  for (size_t i = 0; i < row.size(); ++i) {
    row[i] = normal(random);
    if (random() % 61 == 0) row[i] *= options_.outliers;
    const auto queries = static_cast<size_t>(options_.shape.out_dim());
    if (i < queries) row[i] *= options_.query_scale;
  }
  return row;
}

void Sequence::Prefill(std::span<Sequence* const> batch, int32_t rows) {
  const AttentionShape& shape = batch.front()->options_.shape;
  std::vector<PromptAttentionItem> items;
  std::vector<float> qkv;
  int64_t batch_row = 0;
  for (Sequence* s : batch) {
    const int32_t count = std::min(rows, s->options_.prompt - s->seen_);
    KF_CHECK(count > 0);
    items.push_back({.prompt_tokens = s->options_.prompt,
                     .first_row = s->seen_,
                     .rows = count,
                     .batch_row = batch_row,
                     .keys = s->prompt_pages(),
                     .score = s->options_.score,
                     .score_first_row = s->options_.score_first_row});
    for (int32_t r = 0; r < count; ++r) {
      const std::vector<float> row = s->RowAt(s->seen_ + r);
      qkv.insert(qkv.end(), row.begin(), row.end());
    }
    batch_row += count;
  }
  Backend& backend = BackendOf(batch);
  const auto width = static_cast<size_t>(shape.out_dim());
  auto input = NanBuffer(backend, qkv.size() * sizeof(float));
  auto output = NanBuffer(
      backend, static_cast<size_t>(batch_row) * width * sizeof(float));
  std::memcpy(input->data(), qkv.data(), qkv.size() * sizeof(float));
  const absl::Status status =
      backend.PromptAttention({.shape = shape,
                               .layer = batch.front()->options_.layer,
                               .qkv = input->as<float>(),
                               .out = output->as<float>(),
                               .items = items});
  KF_CHECK(status.ok());
  for (size_t i = 0; i < batch.size(); ++i) {
    const float* from =
        output->as<float>() + static_cast<size_t>(items[i].batch_row) * width;
    batch[i]->prompt_out_.insert(
        batch[i]->prompt_out_.end(), from,
        from + static_cast<size_t>(items[i].rows) * width);
    batch[i]->seen_ += items[i].rows;
  }
}

void Sequence::PrefillAll(int32_t slice) {
  Sequence* self = this;
  while (seen_ < options_.prompt) Prefill({&self, 1}, slice);
}

void Sequence::Compact() {
  KF_CHECK(seen_ == options_.prompt);
  const CompactLayer cut = {
      .from = prompt_pages(), .to = cache_pages(), .free_slot = free_slot()};
  const absl::Status status =
      backend_.Compact({.shape = options_.shape,
                        .prompt_tokens = options_.prompt,
                        .budget = options_.budget,
                        .recent = options_.recent,
                        .layers = {&cut, 1},
                        .age = {}});
  KF_CHECK(status.ok());
  held_ = std::min(options_.budget, options_.prompt);
}

void Sequence::Step(std::span<Sequence* const> batch) {
  const AttentionShape& shape = batch.front()->options_.shape;
  std::vector<DecodeAttentionItem> items;
  std::vector<float> qkv;
  for (Sequence* s : batch) {
    ScoreOptions score = s->options_.score;
    score.tau = s->options_.decode_tau;
    items.push_back({.position = s->seen_,
                     .held = s->held_,
                     .budget = s->options_.budget,
                     .recent = s->options_.recent,
                     .cache = s->cache_pages(),
                     .free_slot = s->free_slot(),
                     .score = score,
                     .add_scores = s->options_.add_scores});
    const std::vector<float> row = s->RowAt(s->seen_);
    qkv.insert(qkv.end(), row.begin(), row.end());
  }
  Backend& backend = BackendOf(batch);
  const auto width = static_cast<size_t>(shape.out_dim());
  auto input = NanBuffer(backend, qkv.size() * sizeof(float));
  auto output = NanBuffer(backend, batch.size() * width * sizeof(float));
  std::memcpy(input->data(), qkv.data(), qkv.size() * sizeof(float));
  const absl::Status status =
      backend.DecodeAttention({.shape = shape,
                               .layer = batch.front()->options_.layer,
                               .qkv = input->as<float>(),
                               .out = output->as<float>(),
                               .items = items});
  KF_CHECK(status.ok());
  for (size_t i = 0; i < batch.size(); ++i) {
    const float* from = output->as<float>() + i * width;
    batch[i]->step_out_.emplace_back(from, from + width);
    ++batch[i]->seen_;
    batch[i]->held_ = std::min(batch[i]->held_ + 1, batch[i]->options_.budget);
  }
}

void Sequence::StepAlone() {
  Sequence* self = this;
  Step({&self, 1});
}

std::vector<HeldTokens> Sequence::Held() {
  auto held =
      backend_.ReadHeld(options_.shape, cache_pages(), held_, free_slot());
  KF_CHECK(held.ok());
  return *std::move(held);
}

}  // namespace kf::testing
