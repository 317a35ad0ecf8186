#include "tests/cuda/decode_rig.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <numeric>

#include "kernels/core/status.h"
#include "kernels/ref/ref_backend.h"

namespace kf::cuda {
namespace {

int32_t PoolPages(const std::vector<RowOptions>& rows) {
  int32_t pages = 3;
  for (const RowOptions& row : rows) {
    const int32_t own = PagesFor(row.held + row.run);
    pages += own + PagesFor(own);
  }
  return pages;
}

size_t Tokens(const std::vector<RowOptions>& rows) {
  int32_t tokens = 0;
  for (const RowOptions& row : rows) tokens += row.run;
  return static_cast<size_t>(tokens);
}

// What tokens are compared by, in f32 as on the device.
float RankOf(const Token& token, const ScoreAge& age) {
  if (std::isnan(token.score)) return std::numeric_limits<float>::infinity();
  return age.enabled
             ? token.score / static_cast<float>(age.RowsThatSaw(token.position))
             : token.score;
}

}  // namespace

DecodeBatch::DecodeBatch(const AttentionShape& shape,
                         const std::vector<RowOptions>& rows)
    : shape_(shape),
      twin_(shape, PoolPages(rows), 5),
      out_(Tokens(rows) * static_cast<size_t>(shape.out_dim())) {
  for (const RowOptions& row : rows) AddRow(row);
}

void DecodeBatch::AddRow(const RowOptions& options) {
  // A row's data are its own, whatever stands before it in the batch.
  twin_.random().seed(options.seed);
  Row row;
  row.options = options;
  row.first_item = items_.size();
  row.slots = options.held + options.run;
  row.pages = twin_.TakePages(PagesFor(row.slots));
  if (options.quest) {
    row.bound_pages =
        twin_.TakePages(PagesFor(static_cast<int32_t>(row.pages.size())));
  }
  FillCache(row);
  AddItems(row);
  rows_.push_back(std::move(row));
}

void DecodeBatch::FillCache(Row& row) {
  const RowOptions& options = row.options;
  const bool in_order = options.quest || options.run > 1;
  std::vector<int32_t> free_slots;
  for (int32_t head = 0; head < shape_.kv_heads; ++head) {
    std::vector<int32_t> positions(static_cast<size_t>(options.position));
    std::iota(positions.begin(), positions.end(), 0);
    if (!in_order) {
      std::shuffle(positions.begin(), positions.end(), twin_.random());
    }
    const int32_t free_slot =
        in_order
            ? options.held
            : static_cast<int32_t>(twin_.random()() %
                                   static_cast<uint32_t>(options.held + 1));
    free_slots.push_back(free_slot);
    const Token same = twin_.RandomToken(0, 0.5F);
    size_t next = 0;
    for (int32_t slot = 0; slot <= options.held; ++slot) {
      if (slot == free_slot) continue;
      const int32_t position = positions[next++];
      Token token = same;
      token.position = position;
      if (!options.equal_keys) {
        token = twin_.RandomToken(position, std::exp(twin_.Normal()),
                                  options.outliers);
      }
      if (options.nan_score && slot % 3 == 0) {
        token.score = std::numeric_limits<float>::quiet_NaN();
      }
      twin_.Put(row.pages, head, slot, token);
    }
  }
  row.free_slots = std::make_unique<TwinArray<int32_t>>(free_slots);
  row.row_scores = std::make_unique<TwinArray<float>>(std::vector<float>(
      static_cast<size_t>(shape_.kv_heads * row.slots), 77.0F));
  if (!options.quest || options.held == 0) return;
  // The bounds of what is held, as a prompt or the steps before left them.
  const auto reference = CreateReferenceBackend();
  KF_CHECK(reference
               ->BoundPages(shape_, options.held, twin_.Reference(row.pages),
                            twin_.Reference(row.bound_pages))
               .ok());
  for (int32_t head = 0; head < shape_.kv_heads; ++head) {
    for (int32_t page = 0; page < PagesFor(options.held); ++page) {
      twin_.Put(row.bound_pages, head, page,
                twin_.Want(row.bound_pages, head, page));
    }
  }
}

void DecodeBatch::AddItems(Row& row) {
  const RowOptions& options = row.options;
  const PageList pages = twin_.Device(row.pages);
  const PageList bounds =
      options.quest ? twin_.Device(row.bound_pages) : PageList{};
  for (int32_t i = 0; i < options.run; ++i) {
    DecodeAttentionItem item;
    item.position = options.position + i;
    item.held = options.held + i;
    item.budget = options.budget;
    item.recent = options.recent;
    item.cache = twin_.Reference(row.pages);
    item.free_slot = row.free_slots->host.data();
    item.score = {options.scored,
                  options.noise,
                  options.resample_once,
                  0x123456789ABCU + options.seed,
                  2,
                  options.tau};
    item.add_scores = options.add_scores;
    item.age = {options.age, std::max(1, options.position / 2),
                std::max(1, options.position / 3), options.position / 2 + 1};
    item.rank_positions = options.rank_positions;
    item.defer_eviction = options.defer;
    if (options.row_scores) item.row_scores = row.row_scores->host.data();
    if (options.quest) item.bounds = twin_.Reference(row.bound_pages);
    item.read_pages = options.read_pages;
    item.continues = i > 0;
    reference_items_.push_back(item);

    DecodeItem device;
    device.cache = pages;
    device.bounds = bounds;
    device.free_slot = row.free_slots->device.data();
    if (options.row_scores) device.row_scores = row.row_scores->device.data();
    device.score = item.score;
    device.score.enabled = options.scored && options.add_scores;
    device.age = item.age;
    device.position = item.position;
    device.held = item.held;
    device.budget = item.budget;
    device.recent = item.recent;
    device.read_pages = item.read_pages;
    device.rank_positions = item.rank_positions;
    device.defer_eviction = item.defer_eviction;
    device.continues = item.continues;
    items_.push_back(device);
    for (int64_t c = 0; c < shape_.qkv_dim(); ++c) {
      qkv_.push_back(twin_.Normal() *
                     (options.outliers && c % 41 == 0 ? 20.0F : 1.0F));
    }
  }
}

std::vector<double> DecodeBatch::Frequencies(const AttentionShape& shape) {
  std::vector<double> frequencies;
  for (int32_t i = 0; i < shape.rotary_dim; i += 2) {
    frequencies.push_back(
        std::pow(shape.rope_base, -static_cast<double>(i) / shape.rotary_dim));
  }
  frequencies.resize(std::max<size_t>(1, frequencies.size()));
  return frequencies;
}

size_t DecodeBatch::RunItems(size_t first,
                             size_t count,
                             int32_t spare_chunks,
                             int64_t most_words) {
  std::vector<DecodeItem> batch(
      items_.begin() + static_cast<ptrdiff_t>(first),
      items_.begin() + static_cast<ptrdiff_t>(first + count));
  batch.front().continues = false;
  DecodeWork work;
  work.shape = {twin_.layout(), shape_.query_heads, shape_.rotary_dim};
  std::vector<DecodeGroup> groups =
      PlanDecodeGroups(work.shape, batch, most_words);
  int64_t words = 0;
  for (DecodeGroup& group : groups) {
    group.plan.max_chunks += spare_chunks;
    words = std::max(words, group.plan.words);
  }
  work.layer = kRigLayer;
  const auto width = static_cast<size_t>(shape_.qkv_dim());
  gpu::DeviceArray<double> device_frequencies(Frequencies(shape_));
  gpu::DeviceArray<float> qkv(std::vector<float>(
      qkv_.begin() + static_cast<ptrdiff_t>(first * width),
      qkv_.begin() + static_cast<ptrdiff_t>((first + count) * width)));
  gpu::DeviceArray<DecodeItem> items(batch);
  gpu::DeviceArray<uint32_t> memory(static_cast<size_t>(words));
  work.frequencies = device_frequencies.data();
  work.qkv = qkv.data();
  work.out = out_.data() + first * static_cast<size_t>(shape_.out_dim());
  work.items = items.data();
  work.memory = memory.data();
  DecodeAttention(nullptr, work, groups);
  ExpectNoFault("decode");
  return groups.size();
}

void DecodeBatch::Run(int32_t spare_chunks) {
  twin_.Upload();
  RunItems(0, items_.size(), spare_chunks);
  twin_.Download();
}

void DecodeBatch::RunOneByOne() {
  twin_.Upload();
  for (size_t i = 0; i < items_.size(); ++i) RunItems(i, 1, 0);
  twin_.Download();
}

size_t DecodeBatch::RunInGroups(int64_t most_words) {
  twin_.Upload();
  const size_t groups = RunItems(0, items_.size(), 0, most_words);
  twin_.Download();
  return groups;
}

void DecodeBatch::ExpectReference(const Tolerance& tolerance) {
  std::vector<float> qkv = qkv_;
  std::vector<float> out(qkv_.size());
  out.resize(items_.size() * static_cast<size_t>(shape_.out_dim()));
  const auto reference = CreateReferenceBackend();
  ASSERT_TRUE(reference
                  ->DecodeAttention({.shape = shape_,
                                     .layer = kRigLayer,
                                     .qkv = qkv.data(),
                                     .out = out.data(),
                                     .items = reference_items_})
                  .ok());
  ExpectClose(Out(), out, tolerance.out, "out");
  float largest = 0.0F;
  for (const float x : out) largest = std::max(largest, std::abs(x));
  EXPECT_GT(largest, 1e-3F) << "the case shows nothing";
  for (Row& row : rows_) ExpectRow(row, tolerance);
}

void DecodeBatch::ExpectRow(Row& row, const Tolerance& tolerance) {
  const std::string what = "row " + std::to_string(row.first_item);
  twin_.ExpectSame(row.pages, row.slots, tolerance.score, what);
  if (row.options.quest) {
    twin_.ExpectSame(row.bound_pages, 0, 0.0F, what);
    for (int32_t head = 0; head < shape_.kv_heads; ++head) {
      for (int32_t page = 0; page < PagesFor(row.slots); ++page) {
        const Token got = twin_.Got(row.bound_pages, head, page);
        const Token want = twin_.Want(row.bound_pages, head, page);
        EXPECT_EQ(got.k, want.k) << what << ", smallest of page " << page;
        EXPECT_EQ(got.v, want.v) << what << ", largest of page " << page;
      }
    }
  }
  ExpectClose(row.row_scores->device.Download(), row.row_scores->host,
              tolerance.score, what + ", row scores");
  const std::vector<int32_t> free_slots = row.free_slots->device.Download();
  const DecodeAttentionItem& item = reference_items_[row.first_item];
  const bool evicts = item.held + 1 > item.budget && !item.defer_eviction;
  for (int32_t head = 0; head < shape_.kv_heads; ++head) {
    const int32_t got = free_slots[static_cast<size_t>(head)];
    const int32_t want = row.free_slots->host[static_cast<size_t>(head)];
    if (!evicts) {
      EXPECT_EQ(got, want) << what;
      continue;
    }
    // By the device's own scores, ties and all.
    EXPECT_EQ(got, VictimOf(row, head)) << what << ", head " << head;
    // Another than the reference's is right only where the two all but tie.
    const float a = RankOf(twin_.Want(row.pages, head, got), item.age);
    const float b = RankOf(twin_.Want(row.pages, head, want), item.age);
    EXPECT_LE(a - b, 1e-5F * (1.0F + b)) << what << ", head " << head;
  }
}

int32_t DecodeBatch::VictimOf(const Row& row, int32_t head) const {
  const DecodeAttentionItem& item = reference_items_[row.first_item];
  int32_t victim = -1;
  float lowest = 0.0F;
  int32_t latest = 0;
  for (int32_t slot = 0; slot < row.slots; ++slot) {
    const Token token = twin_.Got(row.pages, head, slot);
    if (token.position > item.position - item.recent) continue;
    const float rank = RankOf(token, item.age);
    if (victim < 0 || rank < lowest ||
        (rank == lowest && token.position > latest)) {
      victim = slot;
      lowest = rank;
      latest = token.position;
    }
  }
  return victim;
}

std::vector<uint32_t> DecodeBatch::StateOf(size_t i) {
  const Row& row = rows_[i];
  std::vector<uint32_t> state;
  const auto add = [&state](float x) {
    state.push_back(std::bit_cast<uint32_t>(x));
  };
  for (int32_t head = 0; head < shape_.kv_heads; ++head) {
    for (int32_t slot = 0; slot < row.slots; ++slot) {
      const Token token = twin_.Got(row.pages, head, slot);
      for (const float x : token.k) add(x);
      for (const float x : token.v) add(x);
      state.push_back(static_cast<uint32_t>(token.position));
      add(token.score);
    }
  }
  for (const float x : row.row_scores->device.Download()) add(x);
  for (const int32_t slot : row.free_slots->device.Download()) {
    state.push_back(static_cast<uint32_t>(slot));
  }
  const auto out = Out();
  const auto width = static_cast<size_t>(shape_.out_dim());
  for (size_t c = 0; c < width * static_cast<size_t>(row.options.run); ++c) {
    add(out[row.first_item * width + c]);
  }
  return state;
}

}  // namespace kf::cuda
