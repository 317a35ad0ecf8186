// Cuts prompt attention into row tiles.
#include <algorithm>
#include <numeric>
#include <utility>
#include <vector>

#include "kernels/core/aligned.h"
#include "kernels/core/status.h"
#include "kernels/cpu/attention.h"
#include "kernels/cpu/attention_layout.h"
#include "kernels/cpu/rank_positions.h"

namespace kf::cpu {
namespace {

// Score columns of the tiles in flight: 32 MiB.
constexpr int64_t kMaxColumnFloats = int64_t{8} << 20;
// Slots of one work item that adds columns to the page scores.
constexpr int32_t kAddBlock = 512;

// Rows whose queries are fetched ahead: a few lines each, too far apart for the
// machine to see a stream.
constexpr int32_t kRowsAhead = 3;
constexpr int64_t kLineFloats = kCacheLineBytes / sizeof(float);

struct Tile {
  const PromptAttentionItem* item;
  int32_t first_row;
  int32_t rows;
  int64_t columns;  // of kv head 0 in the buffer of columns
  float* cos_sin;   // [rows][head_dim]

  int32_t keys() const { return first_row + rows; }
  int32_t padded_keys() const { return PagesFor(keys()) * kPageTokens; }
};

// Memory of one worker.
struct Worker {
  uint32_t* q;  // [group][kTileRows][steps]
  NoiseWords* words;
  float* logits;
  float* numerators;
  float* values;
  float* sums;
};

class Prompt {
 public:
  Prompt(AttentionContext& context, const PromptAttentionArgs& args)
      : context_(context),
        args_(args),
        shape_(args.shape),
        layout_(MakeHeadLayout(args.shape)),
        kernels_(KernelsOf(context.level)),
        group_(args.shape.query_heads / args.shape.kv_heads) {}

  absl::Status Run();

 private:
  absl::Status AllocateWorkers();
  absl::Status RotateKeys();
  HeadPages KeysOf(const Tile& tile, int32_t head) const;
  void AppendTile(const Tile& tile);
  void AttendTile(const Tile& tile, int32_t head, const Worker& worker);
  void AttendTiles(size_t begin, size_t end);
  void AddColumns(size_t begin, size_t end);

  const float* RowOf(const Tile& tile, int32_t row) const {
    return args_.qkv + BatchRow(tile, row) * shape_.qkv_dim();
  }
  static int64_t BatchRow(const Tile& tile, int32_t row) {
    return tile.item->batch_row + tile.first_row - tile.item->first_row + row;
  }

  AttentionContext& context_;
  const PromptAttentionArgs& args_;
  const AttentionShape& shape_;
  const HeadLayout layout_;
  const AttentionKernels& kernels_;
  const int32_t group_;
  std::vector<Tile> tiles_;
  int32_t max_keys_ = 0;  // padded
  int64_t logits_stride_ = 0;
  std::vector<Worker> workers_;
  float* columns_ = nullptr;
  // Of items with rank positions, by item: K of [kv_heads][pages], rotated.
  std::vector<unsigned char*> rotated_;
  int32_t* every_page_ = nullptr;  // 0, 1, ...
};

absl::Status Prompt::Run() {
  KF_CHECK(!layout_.bytes);
  context_.scratch.Reset();
  for (const PromptAttentionItem& item : args_.items) {
    KF_CHECK(item.first_row % kTileRows == 0 && item.rows > 0);
    const int32_t end = item.first_row + item.rows;
    KF_CHECK(end % kTileRows == 0 || end == item.prompt_tokens);
    KF_CHECK(std::ssize(item.keys.pages) >= PagesFor(end));
    for (int32_t row = item.first_row; row < end; row += kTileRows) {
      tiles_.push_back(
          {&item, row, std::min(kTileRows, end - row), 0, nullptr});
      max_keys_ = std::max(max_keys_, tiles_.back().padded_keys());
    }
  }
  if (tiles_.empty()) return absl::OkStatus();
  context_.rope.Prepare(shape_, max_keys_);
  KF_RETURN_IF_ERROR(AllocateWorkers());
  const int64_t tile_floats = int64_t{kTileRows} * shape_.head_dim;
  KF_ASSIGN_OR_RETURN(float* cos_sin, context_.scratch.Take<float>(
                                          std::ssize(tiles_) * tile_floats));
  for (size_t i = 0; i < tiles_.size(); ++i) {
    tiles_[i].cos_sin = cos_sin + static_cast<int64_t>(i) * tile_floats;
  }

  // Runs of tiles whose columns fit; how they are cut changes no sum.
  std::vector<size_t> ends;
  int64_t used = 0;
  int64_t most = 0;
  for (size_t i = 0; i < tiles_.size(); ++i) {
    const int64_t floats =
        tiles_[i].item->score.enabled
            ? int64_t{shape_.kv_heads} * tiles_[i].padded_keys()
            : 0;
    if (used > 0 && used + floats > kMaxColumnFloats) {
      ends.push_back(i);
      used = 0;
    }
    tiles_[i].columns = used;
    used += floats;
    most = std::max(most, used);
  }
  ends.push_back(tiles_.size());
  if (most > 0) {
    KF_ASSIGN_OR_RETURN(columns_, context_.scratch.Take<float>(most));
  }

  context_.pool.ParallelFor(std::ssize(tiles_), [this](int64_t i, int) {
    AppendTile(tiles_[static_cast<size_t>(i)]);
  });
  KF_RETURN_IF_ERROR(RotateKeys());
  size_t begin = 0;
  for (const size_t end : ends) {
    AttendTiles(begin, end);
    if (most > 0) AddColumns(begin, end);
    begin = end;
  }
  return absl::OkStatus();
}

absl::Status Prompt::AllocateWorkers() {
  ScratchArena& scratch = context_.scratch;
  // One more line, so that a power of two does not put all rows of a tile into
  // the same sets of the cache.
  logits_stride_ = max_keys_ + kPageTokens;
  const int64_t pairs = int64_t{max_keys_ + kPageTokens} / 2;
  const int64_t value_rows = kernels_.pairs_values(layout_)
                                 ? std::max<int64_t>(pairs, kValueBlock)
                                 : kValueBlock;
  for (int i = 0; i < context_.pool.threads(); ++i) {
    Worker w = {};
    KF_ASSIGN_OR_RETURN(w.q, scratch.Take<uint32_t>(int64_t{group_} *
                                                    kTileRows * layout_.steps));
    KF_ASSIGN_OR_RETURN(w.words,
                        scratch.Take<NoiseWords>(int64_t{group_} * kTileRows));
    KF_ASSIGN_OR_RETURN(w.logits,
                        scratch.Take<float>(kTileRows * logits_stride_));
    KF_ASSIGN_OR_RETURN(w.numerators, scratch.Take<float>(logits_stride_));
    KF_ASSIGN_OR_RETURN(w.values,
                        scratch.Take<float>(value_rows * layout_.padded_d));
    KF_ASSIGN_OR_RETURN(
        w.sums, scratch.Take<float>(int64_t{kTileRows} * layout_.padded_d));
    workers_.push_back(w);
  }
  return absl::OkStatus();
}

// Copies K of all rows so far of the items with rank positions, rotated.
absl::Status Prompt::RotateKeys() {
  std::vector<size_t> ranked;
  for (size_t i = 0; i < args_.items.size(); ++i) {
    if (args_.items[i].rank_positions) ranked.push_back(i);
  }
  if (ranked.empty()) return absl::OkStatus();
  ScratchArena& scratch = context_.scratch;
  KF_ASSIGN_OR_RETURN(const float* rotations,
                      RankRotations(context_, shape_, max_keys_));
  KF_ASSIGN_OR_RETURN(int32_t * ranks, scratch.Take<int32_t>(max_keys_));
  std::iota(ranks, ranks + max_keys_, 0);
  every_page_ = ranks;
  rotated_.resize(args_.items.size(), nullptr);
  const int64_t key_bytes = KeyBytes(layout_);
  for (const size_t i : ranked) {
    const PromptAttentionItem& item = args_.items[i];
    const int32_t pages = PagesFor(item.first_row + item.rows);
    const int64_t blocks = int64_t{shape_.kv_heads} * pages;
    KF_ASSIGN_OR_RETURN(rotated_[i],
                        scratch.Take<unsigned char>(blocks * key_bytes));
    context_.pool.ParallelFor(blocks, [&](int64_t block, int /*worker*/) {
      const auto head = static_cast<int32_t>(block / pages);
      const auto page = static_cast<int32_t>(block % pages);
      const int32_t first = page * kPageTokens;
      RotateBlock(kernels_, layout_, rotations, ranks + first,
                  std::min(kPageTokens, item.first_row + item.rows - first),
                  BlockOf(MakeHeadPages(shape_, item.keys, head), page),
                  rotated_[i] + block * key_bytes);
    });
  }
  return absl::OkStatus();
}

HeadPages Prompt::KeysOf(const Tile& tile, int32_t head) const {
  const PromptAttentionItem& item = *tile.item;
  if (!item.rank_positions) return MakeHeadPages(shape_, item.keys, head);
  const int64_t key_bytes = KeyBytes(layout_);
  const int32_t pages = PagesFor(item.first_row + item.rows);
  return {rotated_[static_cast<size_t>(&item - args_.items.data())] +
              int64_t{head} * pages * key_bytes,
          every_page_, key_bytes};
}

void Prompt::AppendTile(const Tile& tile) {
  const HeadLayout layout =
      tile.item->rank_positions ? Unrotated(layout_) : layout_;
  for (int32_t r = 0; r < tile.rows; ++r) {
    const int32_t position = tile.first_row + r;
    float* cos_sin = tile.cos_sin + int64_t{r} * shape_.head_dim;
    context_.rope.Row(position, cos_sin);
    const float* row = RowOf(tile, r);
    for (int32_t g = 0; g < shape_.kv_heads; ++g) {
      const float* k = row + int64_t{shape_.query_heads + g} * shape_.head_dim;
      const HeadPages pages = MakeHeadPages(shape_, tile.item->keys, g);
      kernels_.append({&layout, k, k + int64_t{shape_.kv_heads} * layout_.d,
                       cos_sin, BlockOf(pages, position / kPageTokens),
                       position % kPageTokens, position});
    }
  }
}

void Prompt::AttendTile(const Tile& tile, int32_t head, const Worker& worker) {
  const int64_t head_words = int64_t{kTileRows} * layout_.steps;
  const int64_t group_floats = int64_t{group_} * shape_.head_dim;
  for (int32_t r = 0; r < kTileRows; ++r) {
    if (r + kRowsAhead < tile.rows) {
      const float* ahead = RowOf(tile, r + kRowsAhead) + head * group_floats;
      for (int64_t i = 0; i < group_floats; i += kLineFloats) {
        __builtin_prefetch(ahead + i);
      }
    }
    for (int32_t j = 0; j < group_; ++j) {
      uint32_t* q = worker.q + j * head_words + int64_t{r} * layout_.steps;
      if (r >= tile.rows) {
        std::fill_n(q, layout_.steps, 0U);
        continue;
      }
      const int32_t h = head * group_ + j;
      kernels_.pack_query(layout_,
                          RowOf(tile, r) + int64_t{h} * shape_.head_dim,
                          tile.cos_sin + int64_t{r} * shape_.head_dim, q);
      if (tile.item->score.enabled) {
        worker.words[j * kTileRows + r] = MakeNoiseWords(
            tile.item->score, args_.layer, h, tile.first_row + r);
      }
    }
  }
  PromptTile work = {};
  work.layout = &layout_;
  work.pages = MakeHeadPages(shape_, tile.item->keys, head);
  work.keys = KeysOf(tile, head);
  work.group = group_;
  work.first_row = tile.first_row;
  work.rows = tile.rows;
  work.q = worker.q;
  work.out = args_.out + BatchRow(tile, 0) * shape_.out_dim() +
             int64_t{head} * group_ * shape_.head_dim;
  work.out_stride = shape_.out_dim();
  work.score = MakeScoreSpec(tile.item->score);
  work.score_first = std::max(0, tile.item->score_first_row - tile.first_row);
  work.words = worker.words;
  if (work.score.enabled) {
    work.columns = columns_ + tile.columns + int64_t{head} * tile.padded_keys();
  }
  work.logits = worker.logits;
  work.logits_stride = logits_stride_;
  work.numerators = worker.numerators;
  work.values = worker.values;
  work.sums = worker.sums;
  kernels_.prompt_tile(work);
}

// The last tiles of a prompt, which cost most, go first.
void Prompt::AttendTiles(size_t begin, size_t end) {
  const auto count = static_cast<int64_t>(end - begin) * shape_.kv_heads;
  context_.pool.ParallelFor(count, [&](int64_t i, int worker) {
    const auto back = static_cast<size_t>(i / shape_.kv_heads);
    AttendTile(tiles_[end - 1 - back],
               static_cast<int32_t>(i % shape_.kv_heads),
               workers_[static_cast<size_t>(worker)]);
  });
}

// Adds the columns of tiles [begin, end) to the page scores, tile by tile.
void Prompt::AddColumns(size_t begin, size_t end) {
  const int32_t blocks = (max_keys_ + kAddBlock - 1) / kAddBlock;
  // Tiles of one item are next to each other.
  std::vector<std::pair<size_t, size_t>> runs;
  for (size_t i = begin; i < end; ++i) {
    if (!tiles_[i].item->score.enabled) continue;
    if (runs.empty() || tiles_[runs.back().first].item != tiles_[i].item) {
      runs.emplace_back(i, i);
    }
    runs.back().second = i + 1;
  }
  const int64_t per_run = int64_t{shape_.kv_heads} * blocks;
  context_.pool.ParallelFor(std::ssize(runs) * per_run, [&](int64_t i,
                                                            int /*worker*/) {
    const auto& [first, last] = runs[static_cast<size_t>(i / per_run)];
    const auto head = static_cast<int32_t>(i % per_run / blocks);
    const auto from = static_cast<int32_t>(i % blocks) * kAddBlock;
    const HeadPages pages =
        MakeHeadPages(shape_, tiles_[first].item->keys, head);
    for (size_t t = first; t < last; ++t) {
      const int32_t keys = tiles_[t].padded_keys();
      const float* columns =
          columns_ + tiles_[t].columns + int64_t{head} * keys;
      for (int32_t slot = from; slot < std::min(keys, from + kAddBlock);
           slot += kPageTokens) {
        float* scores = ScoresOf(layout_, BlockOf(pages, slot / kPageTokens));
        for (int32_t s = 0; s < kPageTokens; ++s) {
          scores[s] += columns[slot + s];
        }
      }
    }
  });
}

}  // namespace

absl::Status PromptAttention(AttentionContext& context,
                             const PromptAttentionArgs& args) {
  return Prompt(context, args).Run();
}

}  // namespace kf::cpu
