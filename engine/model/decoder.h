// The model's forward pass over cached sequences: one token each of many
// sequences (a decode step), or rows of prompts through one layer (a prompt
// slice). It reads like the model's equations; all arithmetic is the backend's.
//
// Prompts go a layer at a time: their hidden states wait in a workspace, and
// one layer's K and V in its pages, until the layer's last row has passed and
// the cache is cut to its budget. In scope MODEL the K and V of all layers wait
// in the sequence's own pages, and are cut after the last layer. Those pages
// may be of 8 bits: then K and V are rounded to them when the layer is
// complete, and prompts attend to what they were before. Thread-compatible: the
// engine thread's.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/cache/page_pool.h"
#include "engine/cache/sequence_cache.h"
#include "engine/clock.h"
#include "engine/model/gguf.h"
#include "engine/model/kept_sets.h"
#include "engine/model/model_config.h"
#include "engine/model/weights.h"
#include "kernels/backend.h"

namespace kf::engine {

// Rows of prompts that pass a layer together; a longer slice takes several
// calls. Large enough that the weights' reads no longer count.
inline constexpr int32_t kPromptCallRows = 512;
// Rows of logits held at once.
inline constexpr int32_t kLogitRows = 64;

struct DecoderOptions {
  WeightFormat weight_format = WeightFormat::kBF16;
  DType cache_dtype = DType::kBF16;
  int32_t max_batch = 1;              // rows of a decode step
  int32_t workspace_tokens = 0;       // prompt tokens in flight, in all
  int32_t max_workspace_prompts = 0;  // prompts in flight
  const Clock* clock = nullptr;       // outlives the decoder; null: no times
};

// Rows of one prompt through one layer.
struct PromptPiece {
  std::span<const int32_t> prompt;       // [n], all of it
  int32_t first_row = 0;                 // multiple of kPromptRowTile
  int32_t rows = 0;                      // multiple of it, or up to n
  std::span<const int32_t> workspace;    // pages of workspace_pool(), >= n / 16
  const SequenceCache* cache = nullptr;  // gets the layer when it is complete
  ScoreOptions score;
  int32_t score_first_row = 0;
  bool want_all_rows = false;  // logits of every row, not of the last alone
};

class Decoder {
 public:
  // `file` and `backend` outlive the decoder.
  static absl::StatusOr<std::unique_ptr<Decoder>> Create(
      const GgufFile& file,
      const ModelConfig& config,
      const DecoderOptions& options,
      Backend& backend);

  const AttentionShape& shape() const { return shape_; }
  // Pages for the prompts in flight; a prompt takes ceil(n / 16) of them.
  PagePool& workspace_pool() { return *workspace_pool_; }

  // All layers for rows.size() <= max_batch rows: sequences, each with its
  // beams or the tokens of its replay one after the other (DecodeRow). Row i of
  // the result is final row i.
  absl::Status DecodeStep(std::span<const DecodeRow> rows);
  // Of all decode steps so far: until the backend has returned from attention.
  Duration attention_time() const { return attention_time_; }

  // At most kPromptCallRows rows through `layer`. In the last layer the wanted
  // rows (the prompt's last one, or all) become final rows, in order.
  absl::Status PromptSlice(int32_t layer, std::span<const PromptPiece> pieces);

  // Logits of final rows [first, first + rows), rows <= kLogitRows.
  absl::Status ComputeLogits(int64_t first, int64_t rows);
  // Of the last ComputeLogits, [rows, vocabulary], backend memory.
  const float* logits() const { return logits_->as<float>(); }
  // The first `rows` rows of the last ComputeLogits, [rows, vocabulary], where
  // the host can read them; valid until the next one.
  absl::StatusOr<std::span<const float>> ReadLogits(int64_t rows);

 private:
  Decoder(const ModelConfig& config,
          const DecoderOptions& options,
          Backend& backend);
  absl::Status Allocate();
  absl::Status ReserveWork(int32_t prompt_pages);
  int64_t most_rows() const;  // of a call's activations
  absl::Status RunLayers(std::span<const DecodeRow> rows);
  TimePoint Now() const;
  absl::Status LoadPromptRows(int32_t layer,
                              std::span<const PromptPiece> pieces);
  absl::Status MoveHidden(std::span<const PromptPiece> pieces, bool store);
  absl::Status Project(const LayerWeights& w, int64_t rows);
  absl::Status AttendDecode(int32_t layer, std::span<const DecodeRow> rows);
  absl::Status AttendPrompt(int32_t layer, std::span<const PromptPiece> pieces);
  absl::Status FinishLayer(const LayerWeights& w, int64_t rows);
  PageSpan PromptKeys(int32_t layer, const PromptPiece& piece) const;
  absl::Status CutComplete(int32_t layer, std::span<const PromptPiece> pieces);
  absl::Status KeepPrompt(const PromptPiece& piece, int32_t layer);
  absl::Status CutPrompt(const PromptPiece& piece, int32_t first, int32_t end);
  bool WaitsInCache(const PromptPiece& piece) const;
  absl::StatusOr<int64_t> KeepWantedRows(std::span<const PromptPiece> pieces);

  const ModelConfig config_;
  const DecoderOptions options_;
  const AttentionShape shape_;
  const AttentionShape prompt_shape_;
  Backend& backend_;
  ModelWeights weights_;
  KeptSets kept_sets_;
  std::unique_ptr<PagePool> workspace_pool_;
  std::unique_ptr<Buffer> hidden_store_;  // [workspace pages * 16, hidden]

  // Activations of the call's rows, M <= most_rows().
  std::unique_ptr<Buffer> hidden_;     // [M, hidden], the residual stream
  std::unique_ptr<Buffer> normed_;     // [M, hidden]
  std::unique_ptr<Buffer> qkv_;        // [M, (H + 2 G) d]
  std::unique_ptr<Buffer> attended_;   // [M, H d]
  std::unique_ptr<Buffer> gate_up_;    // [M, 2 ffn]
  std::unique_ptr<Buffer> activated_;  // [M, ffn]
  std::unique_ptr<Buffer> logits_;     // [kLogitRows, vocabulary]

  Duration attention_time_ = Duration::zero();

  // Host scratch, kept to spare allocations.
  std::vector<int32_t> ids_;
  std::vector<DecodeAttentionItem> decode_items_;
  std::vector<PromptAttentionItem> prompt_items_;
  std::vector<CompactLayer> cuts_;
  std::vector<RowCopy> copies_;
  std::vector<float> host_logits_;  // where logits_ is out of the host's reach
};

}  // namespace kf::engine
