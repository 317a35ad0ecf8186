// A decode step as the backend is called for it, BeginStep to EndStep: its
// operations are put off, their descriptors collected, and all is done at the
// end by one copy and one graph launch.
//
// Rows are rounded up to a bucket; those beyond the step's are idle: token 0
// goes through the model, attends to nothing, and nobody looks at it. What is
// per request is in the descriptors, at addresses that the bucket fixes, but
// for page lists, which the descriptors point to.
//
// Where an operation comes that no graph has, what was put off is launched as
// it would have been at once, with the same bits, and so is the rest.
//
// Thread-compatible: the engine thread's.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "kernels/backend.h"
#include "kernels/cuda/dense_calls.h"
#include "kernels/cuda/device.h"
#include "kernels/cuda/graph_cache.h"
#include "kernels/cuda/staging.h"

namespace kf::cuda {

class DecodeStep {
 public:
  // graphs false: nothing is ever put off.
  DecodeStep(const Device& device,
             Workspace& workspace,
             DenseCalls& dense,
             bool graphs)
      : device_(device),
        workspace_(workspace),
        dense_(dense),
        graphs_wanted_(graphs),
        staging_(device),
        graphs_(device) {}

  // From now on as with graphs false.
  void PutNothingOff() { graphs_wanted_ = false; }

  // Takes room for the descriptors of a step, and has its attention done in
  // groups of no more words of working memory than that (PlanDecodeGroups).
  absl::Status Reserve(size_t descriptor_bytes, int64_t most_words) {
    most_words_ = most_words;
    return staging_.Reserve(descriptor_bytes);
  }

  // As Backend::BeginStep, which says what `capacity` is.
  void Begin(int64_t rows, int64_t capacity);
  absl::Status End();
  // Launches what was put off, and puts off no more until Begin.
  absl::Status Flush();

  // Whether an operation of so many rows is put off: then it is added.
  bool Takes(int64_t rows) const { return active_ && rows == rows_; }
  // One whose attention a graph can have. The rest has launches of its own that
  // depend on the row: Quest, positions `cache`, replays, deferred eviction.
  bool Takes(std::span<const DecodeAttentionItem> items) const;
  void Add(const EmbedOp& op, std::span<const int32_t> ids);
  void Add(const NormOp& op) { ops_.emplace_back(op); }
  void Add(const SwiGluOp& op) { ops_.emplace_back(op); }
  void Add(const ProductOp& op) { ops_.emplace_back(op); }
  void Add(const DecodeOp& op, std::span<const DecodeAttentionItem> items);

 private:
  // What launches need besides the operations.
  struct Launching {
    int64_t rows = 0;
    const int32_t* ids = nullptr;  // [rows]
    // [layers][rows], in order of their operations.
    const std::byte* items = nullptr;
    uint32_t* memory = nullptr;
    std::vector<std::vector<DecodeGroup>> layers;
  };

  absl::Status Send(int64_t rows, Launching& launching);
  int64_t PlaceItems(int64_t rows,
                     std::byte* to,
                     const int32_t* device_pages,
                     Launching& launching);
  absl::Status Launch(const Launching& launching);
  void Clear();

  const Device& device_;
  Workspace& workspace_;
  DenseCalls& dense_;
  bool graphs_wanted_;
  int64_t most_words_ = 0;  // 0: any
  FixedStaging staging_;
  GraphCache graphs_;

  bool active_ = false;
  int64_t rows_ = 0;
  int64_t bucket_ = 0;  // rows, rounded up
  std::vector<StepOp> ops_;
  std::vector<int32_t> ids_;
  // Of all DecodeOps, rows_ each; page lists are [first, next first) of pages_.
  std::vector<DecodeItem> items_;
  std::vector<size_t> first_page_;
  std::vector<int32_t> pages_;
  std::vector<DecodeItem> batch_;  // scratch
};

}  // namespace kf::cuda
