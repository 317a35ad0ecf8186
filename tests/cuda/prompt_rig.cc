#include "tests/cuda/prompt_rig.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>
#include <random>

#include "kernels/core/bf16.h"
#include "kernels/core/status.h"
#include "kernels/cuda/prompt_append.h"
#include "kernels/cuda/prompt_attention.h"
#include "kernels/cuda/prompt_score.h"
#include "kernels/ref/ref_backend.h"

namespace kf::cuda {
namespace {

constexpr int32_t kSparePages = 3;  // which nobody owns: they stay NaN

std::vector<int32_t> ShuffledPages(int32_t tokens, uint32_t seed) {
  std::vector<int32_t> pages(
      static_cast<size_t>(PagesFor(tokens) + kSparePages));
  std::iota(pages.begin(), pages.end(), 0);
  std::shuffle(pages.begin(), pages.end(), std::mt19937(seed));
  pages.resize(static_cast<size_t>(PagesFor(tokens)));
  return pages;
}

size_t PoolSize(const PageLayout& layout, int32_t tokens) {
  return static_cast<size_t>(layout.page_bytes *
                             (PagesFor(tokens) + kSparePages));
}

// New memory of a GPU holds anything.
std::vector<std::byte> NanBytes(size_t count) {
  return std::vector<std::byte>(count, std::byte{0xFF});
}

std::vector<double> Frequencies(const AttentionShape& shape) {
  std::vector<double> result;
  for (int32_t i = 0; i < shape.rotary_dim; i += 2) {
    result.push_back(
        std::pow(shape.rope_base, -static_cast<double>(i) / shape.rotary_dim));
  }
  return result;
}

}  // namespace

Prompt::Prompt(const kf::testing::SequenceOptions& options)
    : options_(options),
      reference_(CreateReferenceBackend()),
      source_(*reference_, options),
      layout_(LayoutOf(options.shape)),
      pages_(ShuffledPages(options.prompt, options.data_seed)),
      device_pages_(pages_),
      pool_(NanBytes(PoolSize(layout_, options.prompt))) {}

void Prompt::RunAll(int32_t slice, const std::vector<float>& slopes) {
  Prompt* self = this;
  while (seen_ < options_.prompt) Run({&self, 1}, slice, slopes);
}

void Prompt::Run(std::span<Prompt* const> batch,
                 int32_t rows,
                 const std::vector<float>& slopes) {
  const AttentionShape& shape = batch.front()->options_.shape;
  PromptArgs args;
  args.layout = LayoutOf(shape);
  args.query_heads = shape.query_heads;
  args.rotary_dim = shape.rotary_dim;
  args.layer = batch.front()->options_.layer;
  args.scale = 1.0F / std::sqrt(static_cast<float>(shape.head_dim));
  args.item_count = static_cast<int32_t>(batch.size());
  std::vector<PromptItem> items;
  std::vector<float> qkv;
  int64_t batch_rows = 0;
  int64_t ranked_pages = 0;
  for (Prompt* p : batch) {
    PromptItem item;
    item.keys = {reinterpret_cast<unsigned char*>(p->pool_.data()),
                 p->device_pages_.data()};
    item.batch_row = batch_rows;
    item.score = p->options_.score;
    item.first_row = p->seen_;
    item.rows = std::min(rows, p->options_.prompt - p->seen_);
    KF_CHECK(item.rows > 0);
    item.score_first_row = p->options_.score_first_row;
    item.rank_positions = p->options_.rank_positions;
    const int32_t end = item.first_row + item.rows;
    if (item.rank_positions) {
      item.ranked_page = ranked_pages;
      ranked_pages += PagesFor(end);
      args.any_ranked = true;
    }
    args.any_scored |= item.score.enabled && item.score_first_row < end;
    args.max_rows = std::max(args.max_rows, item.rows);
    args.max_end = std::max(args.max_end, end);
    for (int32_t r = 0; r < item.rows; ++r) {
      const std::vector<float> row = p->Row(item.first_row + r);
      qkv.insert(qkv.end(), row.begin(), row.end());
    }
    batch_rows += item.rows;
    items.push_back(item);
  }
  const auto width = static_cast<size_t>(shape.out_dim());
  const auto heads = static_cast<size_t>(batch_rows * shape.query_heads);
  const size_t row_bytes = static_cast<size_t>(args.layout.padded_dim) *
                           static_cast<size_t>(args.layout.element_bytes);
  const gpu::DeviceArray<PromptItem> device_items(items);
  const gpu::DeviceArray<float> device_qkv(qkv);
  const std::vector<double> angles = Frequencies(shape);
  const gpu::DeviceArray<double> frequencies(angles);
  const gpu::DeviceArray<float> device_slopes(slopes);
  gpu::DeviceArray<float> out(static_cast<size_t>(batch_rows) * width);
  gpu::DeviceArray<unsigned char> queries(heads * row_bytes);
  gpu::DeviceArray<ScoreRow> score_rows(heads);
  gpu::DeviceArray<unsigned char> ranked(
      static_cast<size_t>(ranked_pages * shape.kv_heads * kSlots) * row_bytes);
  args.frequencies = frequencies.data();
  args.alibi_slopes = slopes.empty() ? nullptr : device_slopes.data();
  args.items = device_items.data();
  args.qkv = device_qkv.data();
  args.out = out.data();
  args.queries = queries.data();
  args.score_rows = score_rows.data();
  args.ranked_keys = ranked.data();
  AppendPrompt(nullptr, args);
  RotateRankedKeys(nullptr, args);
  AttendPrompt(nullptr, args);
  ScorePrompt(nullptr, args);
  const std::vector<float> result = out.Download();
  for (size_t i = 0; i < batch.size(); ++i) {
    const float* from =
        result.data() + static_cast<size_t>(items[i].batch_row) * width;
    batch[i]->out_.insert(batch[i]->out_.end(), from,
                          from + static_cast<size_t>(items[i].rows) * width);
    batch[i]->seen_ += items[i].rows;
  }
}

Prompt::Held Prompt::Read() const {
  const std::vector<std::byte> pool = pool_.Download();
  Held held;
  for (int32_t g = 0; g < layout_.kv_heads; ++g) {
    for (int32_t p = 0; p < options_.prompt; ++p) {
      const std::byte* block =
          pool.data() +
          pages_[static_cast<size_t>(p / kSlots)] * layout_.page_bytes +
          g * layout_.head_bytes;
      const auto read = [&](int64_t offset, int64_t index) {
        if (layout_.element_bytes == 4) {
          float x;
          std::memcpy(&x, block + offset + 4 * index, 4);
          return x;
        }
        Bf16 x;
        std::memcpy(&x, block + offset + 2 * index, 2);
        return Bf16ToFloat(x);
      };
      const int32_t slot = p % kSlots;
      for (int32_t c = 0; c < layout_.padded_dim; ++c) {
        held.k.push_back(read(0, slot * layout_.padded_dim + c));
        held.v.push_back(read(layout_.v_offset, slot * layout_.padded_dim + c));
      }
      int32_t position;
      std::memcpy(&position, block + layout_.position_offset + 4 * slot, 4);
      float score;
      std::memcpy(&score, block + layout_.score_offset + 4 * slot, 4);
      held.position.push_back(position);
      held.score.push_back(score);
    }
  }
  return held;
}

}  // namespace kf::cuda
