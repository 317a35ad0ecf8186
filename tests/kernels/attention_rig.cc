#include "tests/kernels/attention_rig.h"

#include <algorithm>
#include <numeric>

#include "gtest/gtest.h"
#include "kernels/core/status.h"
#include "kernels/cpu/attention_layout.h"
#include "kernels/cpu/simd_level.h"
#include "kernels/ref/ref_backend.h"
#include "kernels/ref/ref_page.h"

namespace kf::testing {

std::vector<std::string> SimdLevelNames() {
#if defined(__SANITIZE_THREAD__)
  // Threads share rows and pages alike at every level.
  return {std::string(cpu::NameOf(cpu::PreferredSimdLevel()))};
#endif
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

std::vector<std::string> BackendNames() {
  std::vector<std::string> names = SimdLevelNames();
  names.emplace_back("reference");
  return names;
}

std::unique_ptr<Backend> MakeBackend(const std::string& name) {
  return name == "reference" ? CreateReferenceBackend() : MakeCpu(name, 2);
}

float& ScoreOf(const Backend& backend,
               const AttentionShape& shape,
               const PageSpan& pages,
               int32_t head,
               int32_t slot) {
  if (backend.name() == "reference") {
    return *ref::SlotAt(shape, pages, head, slot).score;
  }
  unsigned char* block =
      cpu::BlockOf(cpu::MakeHeadPages(shape, pages, head), slot / kPageTokens);
  return cpu::ScoresOf(cpu::MakeHeadLayout(shape), block)[slot % kPageTokens];
}

std::unique_ptr<Buffer> NanBuffer(Backend& backend, size_t bytes) {
  auto buffer = backend.Allocate(bytes, "test memory");
  KF_CHECK(buffer.ok());
  const std::vector<std::byte> nan(bytes, std::byte{0xFF});
  KF_CHECK(backend.Upload((*buffer)->data(), nan).ok());
  return *std::move(buffer);
}

namespace {

std::unique_ptr<Buffer> Uploaded(Backend& backend,
                                 std::span<const float> values) {
  const auto bytes = std::as_bytes(values);
  auto buffer = backend.Allocate(bytes.size(), "test memory");
  KF_CHECK(buffer.ok());
  KF_CHECK(backend.Upload((*buffer)->data(), bytes).ok());
  return *std::move(buffer);
}

std::vector<float> Downloaded(Backend& backend, Buffer& buffer) {
  std::vector<float> values(buffer.bytes() / sizeof(float));
  KF_CHECK(
      backend.Download(std::as_writable_bytes(std::span(values)), buffer.data())
          .ok());
  return values;
}

}  // namespace

SequenceOptions SmallOptions(int32_t prompt, int32_t budget, int32_t recent) {
  SequenceOptions o;
  o.shape = {4, 2, 16, 16, 10000.0, DType::kBF16};
  o.prompt = prompt;
  o.budget = budget;
  o.recent = recent;
  o.score = {true, NoiseKind::kGumbel, false, 11, 0, 1.0F};
  o.max_steps = 100;
  return o;
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
  const size_t bound_pages =
      options.quest ? pages_for(static_cast<int32_t>(cache_pages)) : 0;
  std::vector<int32_t> order(prompt_pages + cache_pages + bound_pages + 3);
  std::iota(order.begin(), order.end(), 0);
  std::shuffle(order.begin(), order.end(), std::mt19937(options.data_seed));
  const auto middle = order.begin() + static_cast<std::ptrdiff_t>(prompt_pages);
  prompt_list_.assign(order.begin(), middle);
  cache_list_.assign(middle, middle + static_cast<std::ptrdiff_t>(cache_pages));
  if (options.in_place) {
    cache_list_.resize(std::max(prompt_pages, cache_pages));
    std::copy(prompt_list_.begin(), prompt_list_.end(), cache_list_.begin());
  }
  bound_list_.assign(order.end() - static_cast<std::ptrdiff_t>(bound_pages),
                     order.end());
  pool_ = NanBuffer(backend, order.size() * backend.PageBytes(options.shape));
  const AttentionShape prompt = options.shape.prompt();
  if (prompt.cache_dtype != options.shape.cache_dtype) {
    prompt_pool_ = NanBuffer(backend, order.size() * backend.PageBytes(prompt));
  }
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
                     .score_first_row = s->options_.score_first_row,
                     .rank_positions = s->options_.rank_positions});
    for (int32_t r = 0; r < count; ++r) {
      const std::vector<float> row = s->RowAt(s->seen_ + r);
      qkv.insert(qkv.end(), row.begin(), row.end());
    }
    batch_row += count;
  }
  Backend& backend = BackendOf(batch);
  const auto width = static_cast<size_t>(shape.out_dim());
  auto input = Uploaded(backend, qkv);
  auto output = NanBuffer(
      backend, static_cast<size_t>(batch_row) * width * sizeof(float));
  const absl::Status status =
      backend.PromptAttention({.shape = shape.prompt(),
                               .layer = batch.front()->options_.layer,
                               .qkv = input->as<float>(),
                               .out = output->as<float>(),
                               .items = items});
  KF_CHECK(status.ok());
  const std::vector<float> out = Downloaded(backend, *output);
  for (size_t i = 0; i < batch.size(); ++i) {
    const float* from =
        out.data() + static_cast<size_t>(items[i].batch_row) * width;
    std::vector<float>& all = batch[i]->trace_.prompt_out;
    all.insert(all.end(), from,
               from + static_cast<size_t>(items[i].rows) * width);
    batch[i]->seen_ += items[i].rows;
  }
}

void Sequence::PrefillAll(int32_t slice) {
  Sequence* self = this;
  while (seen_ < options_.prompt) Prefill({&self, 1}, slice);
}

ScoreAge Sequence::Age(int32_t decode_rows) const {
  return {
      .enabled = options_.age,
      .prompt_tokens = options_.prompt,
      .prompt_rows = std::max(1, options_.prompt - options_.score_first_row),
      .decode_rows = options_.add_scores ? decode_rows : 0};
}

void Sequence::Compact() {
  Sequence* self = this;
  Compact({&self, 1});
}

void Sequence::Compact(std::span<Sequence* const> layers) {
  const Sequence& first = *layers.front();
  const SequenceOptions& options = first.options_;
  bool from_prompt = first.prompt_pool_ != nullptr;
  std::vector<CompactLayer> cuts;
  for (Sequence* s : layers) {
    KF_CHECK(s->seen_ == options.prompt);
    cuts.push_back({.from = s->prompt_pages(),
                    .to = s->cache_pages(),
                    .free_slot = s->free_slot()});
  }
  absl::Status status;
  if (from_prompt && options.in_place) {
    status = first.backend_.Compact({.shape = options.shape,
                                     .from_prompt = true,
                                     .prompt_tokens = options.prompt,
                                     .budget = options.prompt,
                                     .layers = cuts,
                                     .age = {}});
    KF_CHECK(status.ok());
    from_prompt = false;
    for (CompactLayer& cut : cuts) cut.from = cut.to;
  }
  status = first.backend_.Compact({.shape = options.shape,
                                   .from_prompt = from_prompt,
                                   .prompt_tokens = options.prompt,
                                   .budget = options.budget,
                                   .recent = options.recent,
                                   .layers = cuts,
                                   .shared = options.shared,
                                   .age = first.Age(0),
                                   .score_factor = options.score_factor});
  KF_CHECK(status.ok());
  for (Sequence* s : layers) {
    if (options.quest) {
      status = s->backend_.BoundPages(options.shape, options.prompt,
                                      s->cache_pages(), s->bound_pages());
      KF_CHECK(status.ok());
    }
    s->held_ = std::min(options.budget, options.prompt);
    s->trace_.held.push_back(s->Held());
  }
}

void Sequence::Step(std::span<Sequence* const> batch) {
  Attend(batch);
  for (Sequence* s : batch) {
    if (s->options_.defer) Evict({&s, 1});
  }
}

void Sequence::Evict(std::span<Sequence* const> layers) {
  const Sequence& first = *layers.front();
  const SequenceOptions& options = first.options_;
  std::vector<PageSpan> caches;
  for (Sequence* s : layers) caches.push_back(s->cache_pages());
  std::vector<SharedLayer> shared;
  for (size_t i = 0; i < layers.size(); ++i) {
    shared.push_back(
        {.caches = {&caches[i], 1}, .free_slot = layers[i]->free_slot()});
  }
  const absl::Status status =
      first.backend_.Evict({.shape = options.shape,
                            .position = first.seen_ - 1,
                            .held = first.held_,
                            .budget = options.budget,
                            .recent = options.recent,
                            .layers = shared,
                            .shared = options.shared,
                            .age = first.Age(first.seen_ - options.prompt)});
  KF_CHECK(status.ok());
  for (Sequence* s : layers) {
    s->held_ = std::min(s->held_ + 1, options.budget);
    s->trace_.held.push_back(s->Held());
  }
}

void Sequence::Attend(std::span<Sequence* const> batch, int32_t tokens) {
  const AttentionShape& shape = batch.front()->options_.shape;
  std::vector<DecodeAttentionItem> items;
  std::vector<float> qkv;
  for (Sequence* s : batch) {
    ScoreOptions score = s->options_.score;
    score.tau = s->options_.decode_tau;
    for (int32_t ahead = 0; ahead < tokens; ++ahead) {
      const int32_t position = s->seen_ + ahead;
      items.push_back({.position = position,
                       .held = s->held_ + ahead,
                       .budget = s->options_.budget,
                       .recent = s->options_.recent,
                       .cache = s->cache_pages(),
                       .free_slot = s->free_slot(),
                       .score = score,
                       .add_scores = s->options_.add_scores,
                       .age = s->Age(position + 1 - s->options_.prompt),
                       .rank_positions = s->options_.rank_positions,
                       .defer_eviction = s->options_.defer,
                       .bounds = s->bound_pages(),
                       .read_pages = s->options_.read_pages,
                       .continues = ahead > 0});
      const std::vector<float> row = s->RowAt(position);
      qkv.insert(qkv.end(), row.begin(), row.end());
    }
  }
  Backend& backend = BackendOf(batch);
  const auto width = static_cast<size_t>(shape.out_dim());
  auto input = Uploaded(backend, qkv);
  auto output = NanBuffer(backend, items.size() * width * sizeof(float));
  const absl::Status status =
      backend.DecodeAttention({.shape = shape,
                               .layer = batch.front()->options_.layer,
                               .qkv = input->as<float>(),
                               .out = output->as<float>(),
                               .items = items});
  KF_CHECK(status.ok());
  const std::vector<float> out = Downloaded(backend, *output);
  const float* from = out.data();
  for (Sequence* s : batch) {
    for (int32_t i = 0; i < tokens; ++i, from += width) {
      s->trace_.step_out.emplace_back(from, from + width);
    }
    s->seen_ += tokens;
    if (s->options_.defer) continue;  // Evict's business
    s->held_ = std::min(s->held_ + tokens, s->options_.budget);
    s->trace_.held.push_back(s->Held());
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

Trace RunAlone(Backend& backend,
               const SequenceOptions& options,
               int32_t slice) {
  Sequence s(backend, options);
  s.PrefillAll(slice);
  s.Compact();
  for (int32_t i = 0; i < options.max_steps; ++i) s.StepAlone();
  return s.trace();
}

}  // namespace kf::testing
