// How many pages a request owns, and how large the pool is.
#pragma once

#include <cstdint>
#include <optional>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/cache/request_sizes.h"
#include "kernels/backend.h"

namespace kf::engine {

// a >= 0, b > 0.
constexpr int32_t CeilDiv(int32_t a, int32_t b) {
  return a / b + (a % b > 0 ? 1 : 0);
}

// Pages of one layer after the prompt, fixed until the end: k_l slots and the
// free one that the next token takes, ceil((min(k_l, n + T) + 1) / 16).
int32_t TokenPages(const RequestSizes& sizes, int32_t layer);
// Those that hold the bounds of these pages: Quest's.
int32_t BoundPages(const RequestSizes& sizes, int32_t layer);
// Pages of one layer during the prompt: the same, or all of the prompt's where
// it is cut only when its last layer is complete (scope MODEL).
int32_t PromptTokenPages(const RequestSizes& sizes, int32_t layer);

// Of a request, in all layers, bounds included. FULL and QUEST sequences have
// the whole pages of their prompt in common: nobody writes there again.
struct CachePages {
  int64_t prompt = 0;  // from admission until the prompt is done
  int64_t kept = 0;    // from then to the end; at most `prompt`
  int64_t each = 0;    // of `kept`, free when one of several sequences ends
};
CachePages CountPages(const RequestSizes& sizes, int32_t layers);

// Of a request that takes its pages as its tokens come: FULL and QUEST, but not
// beams. Its samples have the whole pages of the prompt in common.
struct GrowthPlan {
  int32_t layers = 0;
  int32_t bounded_layers = 0;  // whose pages have bounds
  int32_t prompt_tokens = 0;   // n
  int32_t most_tokens = 0;     // n + T + 1

  // Of `rows` sequences with room for `tokens` tokens each, the prompt
  // included; more than most_tokens count as these.
  int64_t Pages(int32_t rows, int64_t tokens) const;
};
// Nothing for a request that has all its pages from admission on.
std::optional<GrowthPlan> GrowthOf(const RequestSizes& sizes, int32_t layers);

// kFailedPrecondition, with both numbers in pages and in tokens, if the request
// needs more pages than there are.
absl::Status CheckFitsPool(const RequestSizes& sizes,
                           int32_t layers,
                           int64_t pool_pages);
// The same for more sequences than a batch has rows.
absl::Status CheckFitsBatch(const RequestSizes& sizes, int32_t max_batch);
// The same for a prompt longer than the prompt workspace.
absl::Status CheckFitsWorkspace(const RequestSizes& sizes,
                                int64_t workspace_tokens);

struct PoolSizeInput {
  uint64_t requested_bytes = 0;  // --kv_pool_bytes; 0: choose
  uint64_t chosen_bytes = 0;     // what there is room for, where it is 0
  size_t page_bytes = 0;
  int32_t layers = 0;
  int32_t context_tokens = 0;
  int32_t max_batch = 0;
};

// Pages of the pool. Chosen: no more than max_batch whole contexts can fill.
// kInvalidArgument names kv_pool_bytes if not even one page a layer comes out
// of it.
absl::StatusOr<int32_t> PoolPages(const PoolSizeInput& input);

// What a pool may take of what is left by now: of a device's own memory, what
// `device_share` (0 to 1) of it leaves beside what is taken; else a quarter of
// AvailableMemoryBytes.
uint64_t RoomForPool(const std::optional<DeviceMemory>& device,
                     double device_share);

// Bytes that this process may still take: MemAvailable, and what the control
// group (v2 or v1) leaves; 0 if the system does not say.
uint64_t AvailableMemoryBytes();

}  // namespace kf::engine
