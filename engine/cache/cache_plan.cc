#include "engine/cache/cache_plan.h"

#include <algorithm>
#include <fstream>
#include <limits>
#include <optional>
#include <string>

#include "absl/strings/str_cat.h"
#include "kernels/core/status.h"

namespace kf::engine {
namespace {

// A file that holds one number; "max" and anything else are no limit.
std::optional<uint64_t> ReadNumber(const char* path) {
  std::ifstream file(path);
  uint64_t value = 0;
  if (file >> value) return value;
  return std::nullopt;
}

std::optional<uint64_t> MemAvailable() {
  std::ifstream file("/proc/meminfo");
  std::string key;
  uint64_t kib = 0;
  std::string unit;
  while (file >> key >> kib) {
    if (key == "MemAvailable:") return kib * 1024;
    std::getline(file, unit);
  }
  return std::nullopt;
}

std::optional<uint64_t> GroupAvailable(const char* limit_path,
                                       const char* used_path) {
  const auto limit = ReadNumber(limit_path);
  const auto used = ReadNumber(used_path);
  if (!limit || !used) return std::nullopt;
  return *limit > *used ? *limit - *used : 0;
}

}  // namespace

int32_t TokenPages(const RequestSizes& sizes, int32_t layer) {
  const int32_t total = sizes.prompt_tokens + sizes.max_new_tokens;
  const int32_t most = std::min(sizes.rules.size(layer).budget, total);
  return CeilDiv(most + 1, kPageTokens);
}

int32_t BoundPages(const RequestSizes& sizes, int32_t layer) {
  if (!sizes.rules.bounded(layer)) return 0;
  return CeilDiv(TokenPages(sizes, layer), kPageTokens);
}

int32_t PromptTokenPages(const RequestSizes& sizes, int32_t layer) {
  const int32_t kept = TokenPages(sizes, layer);
  if (sizes.rules.scope != SelectionScope::kModel) return kept;
  return std::max(kept, CeilDiv(sizes.prompt_tokens + 1, kPageTokens));
}

CachePages CountPages(const RequestSizes& sizes, int32_t layers) {
  const int32_t whole = sizes.shares_prompt ? sizes.prompt_tokens : 0;
  int64_t prompt = 0;  // of the first sequence
  int64_t common = 0;
  CachePages pages;
  for (int32_t layer = 0; layer < layers; ++layer) {
    const int32_t bounds = BoundPages(sizes, layer);
    prompt += PromptTokenPages(sizes, layer) + bounds;
    pages.each += TokenPages(sizes, layer) + bounds;
    common += whole / kPageTokens;
    if (bounds > 0) common += whole / (kPageTokens * kPageTokens);
  }
  pages.each -= common;
  pages.kept = common + sizes.sequences * pages.each;
  pages.prompt = std::max(prompt, pages.kept);
  return pages;
}

int64_t GrowthPlan::Pages(int32_t rows, int64_t tokens) const {
  const auto slots =
      static_cast<int32_t>(std::min(tokens, static_cast<int64_t>(most_tokens)));
  const int32_t pages = CeilDiv(slots, kPageTokens);
  const int64_t one = int64_t{layers} * pages +
                      int64_t{bounded_layers} * CeilDiv(pages, kPageTokens);
  const int32_t whole = prompt_tokens / kPageTokens;
  const int64_t common =
      int64_t{layers} * whole + int64_t{bounded_layers} * (whole / kPageTokens);
  return common + rows * (one - common);
}

std::optional<GrowthPlan> GrowthOf(const RequestSizes& sizes, int32_t layers) {
  if (!sizes.grows) return std::nullopt;
  GrowthPlan plan{
      .layers = layers,
      .bounded_layers = 0,
      .prompt_tokens = sizes.prompt_tokens,
      .most_tokens = sizes.prompt_tokens + sizes.max_new_tokens + 1};
  for (int32_t layer = 0; layer < layers; ++layer) {
    if (sizes.rules.bounded(layer)) ++plan.bounded_layers;
  }
  return plan;
}

absl::Status CheckFitsPool(const RequestSizes& sizes,
                           int32_t layers,
                           int64_t pool_pages) {
  const int64_t needed = CountPages(sizes, layers).prompt;
  if (needed <= pool_pages) return absl::OkStatus();
  const std::string of_all =
      sizes.sequences == 1
          ? ""
          : absl::StrCat(" for ", sizes.sequences, " sequences");
  return absl::FailedPreconditionError(absl::StrCat(
      "the request can never fit: its cache needs ", needed, " pages", of_all,
      " (", needed * kPageTokens / layers, " tokens in each of ", layers,
      " layers", needed % layers == 0 ? "" : " on average", "), the pool has ",
      pool_pages, " (", pool_pages / layers * kPageTokens, " tokens)"));
}

absl::Status CheckFitsBatch(const RequestSizes& sizes, int32_t max_batch) {
  if (sizes.sequences <= max_batch) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat(
      "the request can never fit: it has ", sizes.sequences,
      " sequences, the batch holds ", max_batch, " (--max_batch)"));
}

absl::Status CheckFitsWorkspace(const RequestSizes& sizes,
                                int64_t workspace_tokens) {
  if (sizes.prompt_tokens <= workspace_tokens) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat("the request can never fit: its prompt has ",
                   sizes.prompt_tokens, " tokens, the prefill workspace holds ",
                   workspace_tokens, " (--prefill_workspace_tokens)"));
}

absl::StatusOr<int32_t> PoolPages(const PoolSizeInput& input) {
  const int64_t context_pages =
      (int64_t{input.context_tokens} + kPageTokens) / kPageTokens;
  const uint64_t useful = static_cast<uint64_t>(context_pages) *
                          static_cast<uint64_t>(input.layers) *
                          static_cast<uint64_t>(input.max_batch);
  const bool chosen = input.requested_bytes == 0;
  const uint64_t bytes = chosen ? input.chosen_bytes : input.requested_bytes;
  uint64_t pages = bytes / input.page_bytes;
  if (chosen) pages = std::min(pages, useful);
  pages = std::min<uint64_t>(pages, std::numeric_limits<int32_t>::max());
  if (pages < static_cast<uint64_t>(input.layers)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "kv_pool_bytes: ", bytes, chosen ? " (what there is room for)" : "",
        ", want at least ",
        input.page_bytes * static_cast<size_t>(input.layers), " (one page of ",
        kPageTokens, " tokens in each of ", input.layers, " layers)"));
  }
  return static_cast<int32_t>(pages);
}

uint64_t RoomForPool(const std::optional<DeviceMemory>& device,
                     double device_share) {
  if (!device.has_value()) return AvailableMemoryBytes() / 4;
  const auto share =
      static_cast<uint64_t>(device_share * static_cast<double>(device->total));
  const uint64_t taken = device->total - device->free;
  return share > taken ? share - taken : 0;
}

uint64_t AvailableMemoryBytes() {
  std::optional<uint64_t> best = MemAvailable();
  for (const auto& group :
       {GroupAvailable("/sys/fs/cgroup/memory.max",
                       "/sys/fs/cgroup/memory.current"),
        GroupAvailable("/sys/fs/cgroup/memory/memory.limit_in_bytes",
                       "/sys/fs/cgroup/memory/memory.usage_in_bytes")}) {
    if (group && (!best || *group < *best)) best = group;
  }
  return best.value_or(0);
}

}  // namespace kf::engine
