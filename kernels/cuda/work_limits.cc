#include "kernels/cuda/work_limits.h"

#include <algorithm>

#include "kernels/cuda/attention_calls.h"
#include "kernels/cuda/compact.h"
#include "kernels/cuda/decode_attention.h"
#include "kernels/cuda/page_copy.h"
#include "kernels/cuda/prompt.h"
#include "kernels/cuda/sample.h"
#include "kernels/cuda/sample_calls.h"
#include "kernels/cuda/staging.h"

namespace kf::cuda {
namespace {

// A batch of many long texts is cut rather than given more: as many blocks as a
// large device runs at once find work in this.
constexpr int64_t kMostDecodeWords = int64_t{64} << 20;
// There are 8 places for the descriptors of a call.
constexpr size_t kMostDescriptors = size_t{8} << 20;
constexpr size_t kMostStepDescriptors = size_t{64} << 20;

size_t Count(int64_t count) { return static_cast<size_t>(count); }

// Of a row that holds the whole context, in words.
int64_t DecodeRowWords(const WorkLimits& limits, bool ranked) {
  DecodeItem item;
  item.held = item.position = limits.context_tokens - 1;
  item.budget = limits.context_tokens;
  item.score.enabled = true;
  item.rank_positions = ranked;
  const DecodeShape shape = {LayoutOf(limits.shape), limits.shape.query_heads,
                             limits.shape.rotary_dim};
  return PlanDecode(shape, {&item, 1}).words;
}

int64_t DecodeWords(const WorkLimits& limits) {
  const PageLayout layout = LayoutOf(limits.shape);
  // Idle rows, up to a bucket's size, have queries alone.
  const int64_t queries = limits.decode_rows * limits.shape.query_heads *
                          layout.padded_dim * layout.element_bytes / 4;
  const int64_t batch = limits.decode_rows * DecodeRowWords(limits, false);
  return queries + std::max(DecodeRowWords(limits, true),
                            std::min(batch, kMostDecodeWords));
}

// The choices of a cut, the sums of an eviction, and what reports read: lists
// of a sequence's tokens.
size_t ListBytes(const WorkLimits& limits) {
  const size_t slots =
      Count(int64_t{PagesFor(limits.context_tokens + 1)} * kSlots);
  const size_t of_heads =
      PartBytes(Count(limits.shape.kv_heads) * slots * sizeof(float));
  return 2 * of_heads + PartBytes(slots * sizeof(float));
}

size_t Descriptors(const WorkLimits& limits) {
  const size_t rows = Count(limits.decode_rows);
  const size_t layers = Count(limits.layers);
  const size_t pages = Count(PagesFor(limits.context_tokens + 1));
  const size_t list = PartBytes(pages * sizeof(int32_t));
  const size_t texts =
      Count(std::min(limits.vocabulary, limits.context_tokens));
  return std::max({PartBytes(Count(limits.rows) * sizeof(int32_t)),
                   ArrayBytes<PromptItem>(rows) + rows * kPartBytes +
                       PartBytes(Count(limits.prompt_pages) * sizeof(int32_t)),
                   ArrayBytes<DecodeItem>(rows) + 2 * rows * list,
                   ArrayBytes<CompactItem>(layers) + 2 * layers * list,
                   ArrayBytes<PagePair>(layers * pages),
                   ArrayBytes<SampleItem>(rows + kSampledAtOnce) +
                       rows * (ArrayBytes<LogitChange>(texts) + kPartBytes)});
}

size_t StepDescriptors(const WorkLimits& limits) {
  const size_t rows = Count(limits.decode_rows);
  const size_t pages = Count(PagesFor(limits.context_tokens + 1));
  return ArrayBytes<int32_t>(2 * rows) +
         Count(limits.layers) * (ArrayBytes<DecodeItem>(2 * rows) +
                                 PartBytes(rows * pages * sizeof(int32_t)));
}

}  // namespace

PromptPlaces PlacePrompt(const PageLayout& layout,
                         int32_t query_heads,
                         int64_t rows,
                         bool any_scored,
                         int64_t ranked_pages) {
  const size_t row_heads = Count(rows * query_heads);
  const size_t padded =
      Count(int64_t{layout.padded_dim} * layout.element_bytes);
  Parts parts;
  PromptPlaces places;
  places.queries = parts.Take(row_heads * padded);
  places.score_rows = parts.Take(any_scored ? row_heads * sizeof(ScoreRow) : 0);
  places.ranked_keys =
      parts.Take(Count(ranked_pages * layout.kv_heads * kSlots) * padded);
  places.bytes = parts.bytes();
  return places;
}

WorkBytes WorkBytesOf(const WorkLimits& limits) {
  WorkBytes bytes;
  bytes.decode_words = DecodeWords(limits);
  const PromptPlaces prompt =
      PlacePrompt(LayoutOf(limits.shape.prompt()), limits.shape.query_heads,
                  limits.rows, /*any_scored=*/true, limits.prompt_pages);
  bytes.workspace =
      std::max({prompt.bytes, Count(bytes.decode_words) * sizeof(uint32_t),
                ListBytes(limits),
                SampleCalls::WorkspaceBytes(limits.decode_rows + kSampledAtOnce,
                                            limits.vocabulary)});
  bytes.descriptors = std::min(Descriptors(limits), kMostDescriptors);
  bytes.step_descriptors =
      std::min(StepDescriptors(limits), kMostStepDescriptors);
  return bytes;
}

}  // namespace kf::cuda
