// The attention calls of kernels/backend.h on the device: descriptors are
// flattened, staged in one copy, and handed to the launch functions.
//
// A page list or an item that the device reads is copied by then; the caller's
// may go when the call returns.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/backend.h"
#include "kernels/cuda/device.h"
#include "kernels/cuda/graph_cache.h"
#include "kernels/cuda/page_layout.h"
#include "kernels/cuda/staging.h"

namespace kf::cuda {

PageLayout LayoutOf(const AttentionShape& shape);

// All of the item but its page lists and what PlanDecode sets.
DecodeItem FlatItem(const DecodeAttentionItem& item);

// What calls share. Thread-compatible: the engine thread's.
class AttentionCalls {
 public:
  AttentionCalls(const Device& device, Staging& staging, Workspace& workspace)
      : device_(device), staging_(staging), workspace_(workspace) {}

  // Takes what is kept for calls of this shape, and does decode attention in
  // groups that need no more working memory than this (PlanDecodeGroups).
  absl::Status Reserve(const AttentionShape& shape, int64_t most_decode_words);

  absl::Status Prompt(const PromptAttentionArgs& args);
  absl::Status Compact(const CompactArgs& args);
  absl::Status Decode(const DecodeAttentionArgs& args);
  // The same, but for the items.
  absl::StatusOr<DecodeOp> MakeDecodeOp(const DecodeAttentionArgs& args);
  absl::Status AddRowScores(const AddRowScoresArgs& args);
  absl::Status Evict(const EvictArgs& args);
  absl::Status CopyPages(const AttentionShape& shape,
                         std::byte* base,
                         std::span<const PageCopy> copies);
  absl::Status BoundPages(const AttentionShape& shape,
                          int32_t tokens,
                          const PageSpan& cache,
                          const PageSpan& bounds);
  absl::StatusOr<std::vector<HeldTokens>> ReadHeld(const AttentionShape& shape,
                                                   const PageSpan& cache,
                                                   int32_t held,
                                                   const int32_t* free_slot);

 private:
  // [rotary_dim / 2] on the device, made when first asked for.
  absl::StatusOr<const double*> Frequencies(const AttentionShape& shape);
  // The first pages of a list, enough for `slots`; staged.
  PageList Stage(const PageSpan& span, int32_t slots);

  const Device& device_;
  Staging& staging_;
  Workspace& workspace_;
  int64_t most_words_ = 0;  // of decode attention; 0: any
  std::map<std::pair<double, int32_t>, std::unique_ptr<DeviceBuffer>>
      frequencies_;
};

}  // namespace kf::cuda
