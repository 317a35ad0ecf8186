// Runs one decode step of a batch on the device and on the reference, from the
// same caches. Test support.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "kernels/backend.h"
#include "kernels/cuda/decode_attention.h"
#include "tests/cuda/cache_twin.h"

namespace kf::cuda {

inline constexpr int32_t kRigLayer = 3;

// One row; what is not said is as in DecodeAttentionItem.
struct RowOptions {
  int32_t held = 1;
  int32_t budget = 1;
  int32_t recent = 0;
  // Positions of held tokens are drawn from below this: >= held.
  int32_t position = 1;
  bool scored = true;
  bool add_scores = true;
  NoiseKind noise = NoiseKind::kGumbel;
  bool resample_once = false;
  float tau = 1.25F;
  bool age = false;
  bool rank_positions = false;
  bool defer = false;
  bool row_scores = false;
  bool quest = false;
  int32_t read_pages = 0;
  int32_t run = 1;  // tokens of a replay; > 1 needs held == position
  bool outliers = false;
  bool equal_keys = false;
  bool nan_score = false;  // of some held tokens
  uint32_t seed = 1;       // of the row's data
};

// How close a row is to the reference: values within 1 + |value| times these.
struct Tolerance {
  float out = 1e-5F;
  float score = 1e-5F;
};

class DecodeBatch {
 public:
  DecodeBatch(const AttentionShape& shape, const std::vector<RowOptions>& rows);

  // On the device. `spare_chunks` widens the grid.
  void Run(int32_t spare_chunks = 0);
  // The same items, each in a call of its own.
  void RunOneByOne();
  // In groups of no more words; their number.
  size_t RunInGroups(int64_t most_words);
  // For a step that is launched elsewhere: what it reads, and its output.
  void Upload() { twin_.Upload(); }
  std::vector<DecodeItem> Items() const { return items_; }  // not planned
  const std::vector<float>& qkv() const { return qkv_; }
  DecodeShape shape() const {
    return {twin_.layout(), shape_.query_heads, shape_.rotary_dim};
  }
  void Download(const std::vector<float>& out) {
    twin_.Download();
    out_.Upload(out);
  }
  static std::vector<double> Frequencies(const AttentionShape& shape);
  // The reference's step; then all that the step may write is compared.
  void ExpectReference(const Tolerance& tolerance);

  // [M, H d], after Run.
  std::vector<float> Out() { return out_.Download(); }
  // All that row `i` left: its caches' slots, row scores and free slots, as
  // bits.
  std::vector<uint32_t> StateOf(size_t i);

 private:
  struct Row {
    RowOptions options;
    std::vector<int32_t> pages;
    std::vector<int32_t> bound_pages;
    std::unique_ptr<TwinArray<int32_t>> free_slots;
    std::unique_ptr<TwinArray<float>> row_scores;
    size_t first_item;
    int32_t slots;  // live after the step
  };

  void AddRow(const RowOptions& options);
  void FillCache(Row& row);
  void AddItems(Row& row);
  size_t RunItems(size_t first,
                  size_t count,
                  int32_t spare_chunks,
                  int64_t most_words = 0);
  // Who leaves, by what the device holds.
  int32_t VictimOf(const Row& row, int32_t head) const;
  void ExpectRow(Row& row, const Tolerance& tolerance);

  AttentionShape shape_;
  CacheTwin twin_;
  std::vector<Row> rows_;
  std::vector<DecodeAttentionItem> reference_items_;
  std::vector<DecodeItem> items_;
  std::vector<float> qkv_;
  std::vector<float> reference_out_;
  gpu::DeviceArray<float> out_;
};

}  // namespace kf::cuda
