// What follows a decode step whose eviction was deferred: the beams' rows, the
// choice of what leaves, and copies of pages that sequences had in common.
#include <algorithm>
#include <array>
#include <cstring>
#include <numeric>

#include "kernels/core/status.h"
#include "kernels/cpu/attention.h"
#include "kernels/cpu/attention_layout.h"

namespace kf::cpu {
namespace {

// Pages of a work item over one sequence.
constexpr int32_t kPageBlock = 16;

// Positions and summed scores of 16 slots, found like those of a page.
struct SumPage {
  std::array<int32_t, kPageTokens> positions;
  std::array<float, kPageTokens> scores;
};

// One victim for all heads and layers: scores are summed over layers and heads,
// in order.
absl::StatusOr<int32_t> SharedVictim(AttentionContext& context,
                                     const EvictArgs& args) {
  const AttentionShape& shape = args.shape;
  const HeadLayout layout = MakeHeadLayout(shape);
  const int32_t pages = PagesFor(args.held + 1);
  context.scratch.Reset();
  KF_ASSIGN_OR_RETURN(SumPage * sums, context.scratch.Take<SumPage>(pages));
  KF_ASSIGN_OR_RETURN(int32_t * list, context.scratch.Take<int32_t>(pages));
  std::iota(list, list + pages, 0);
  const int32_t blocks = (pages + kPageBlock - 1) / kPageBlock;
  context.pool.ParallelFor(blocks, [&](int64_t block, int /*worker*/) {
    const auto first = static_cast<int32_t>(block) * kPageBlock;
    const int32_t end = std::min(pages, first + kPageBlock);
    const HeadPages positions =
        MakeHeadPages(shape, args.layers[0].caches[0], 0);
    for (int32_t page = first; page < end; ++page) {
      std::memcpy(sums[page].positions.data(),
                  PositionsOf(layout, BlockOf(positions, page)),
                  sizeof(SumPage::positions));
      sums[page].scores.fill(0.0F);
    }
    for (const SharedLayer& layer : args.layers) {
      for (int32_t g = 0; g < shape.kv_heads; ++g) {
        const HeadPages from = MakeHeadPages(shape, layer.caches[0], g);
        for (int32_t page = first; page < end; ++page) {
          const float* scores = ScoresOf(layout, BlockOf(from, page));
          for (size_t s = 0; s < kPageTokens; ++s) {
            sums[page].scores[s] += scores[s];
          }
        }
      }
    }
  });
  HeadLayout sum_layout = layout;
  sum_layout.position_offset = offsetof(SumPage, positions);
  sum_layout.score_offset = offsetof(SumPage, scores);
  return KernelsOf(context.level)
      .find_victim({&sum_layout,
                    {reinterpret_cast<unsigned char*>(sums), list,
                     int64_t{sizeof(SumPage)}},
                    args.held + 1,
                    args.position - args.recent,
                    MakeAgeSpec(args.age)});
}

}  // namespace

absl::Status AddRowScores(AttentionContext& context,
                          const AddRowScoresArgs& args) {
  const AttentionShape& shape = args.shape;
  const HeadLayout layout = MakeHeadLayout(shape);
  const std::span<const PageSpan> caches = args.layer.caches;
  KF_CHECK(!caches.empty());
  const int32_t slots = args.held + 1;
  for (const PageSpan& cache : caches) {
    KF_CHECK(std::ssize(cache.pages) >= PagesFor(slots));
  }
  const int32_t pages = PagesFor(slots);
  const int32_t blocks = (pages + kPageBlock - 1) / kPageBlock;
  context.pool.ParallelFor(
      int64_t{shape.kv_heads} * blocks, [&](int64_t i, int /*worker*/) {
        const auto head = static_cast<int32_t>(i / blocks);
        const auto first = static_cast<int32_t>(i % blocks) * kPageBlock;
        const int32_t end = std::min(pages, first + kPageBlock);
        for (int32_t page = first; page < end; ++page) {
          const auto live = static_cast<size_t>(
              std::min(kPageTokens, slots - page * kPageTokens));
          const auto scores_of = [&](const PageSpan& cache) {
            return ScoresOf(layout,
                            BlockOf(MakeHeadPages(shape, cache, head), page));
          };
          std::array<float, kPageTokens> sums = {};
          std::copy_n(scores_of(caches[0]), live, sums.begin());
          for (const float* row : args.row_scores) {
            const float* part =
                row + int64_t{head} * slots + int64_t{page} * kPageTokens;
            for (size_t s = 0; s < live; ++s) sums[s] += part[s];
          }
          // Set, not added: beams may have the page in common.
          for (const PageSpan& cache : caches) {
            std::copy_n(sums.begin(), live, scores_of(cache));
          }
        }
      });
  return absl::OkStatus();
}

absl::Status Evict(AttentionContext& context, const EvictArgs& args) {
  const AttentionShape& shape = args.shape;
  const HeadLayout layout = MakeHeadLayout(shape);
  KF_CHECK(args.held >= 0 && args.held <= args.budget && !args.layers.empty());
  KF_CHECK(args.recent >= 0 && args.recent <= args.budget);
  for (const SharedLayer& layer : args.layers) {
    KF_CHECK(!layer.caches.empty() &&
             std::ssize(layer.caches[0].pages) >= PagesFor(args.held + 1));
  }
  const bool evict = args.held + 1 > args.budget;
  if (!evict || args.shared) {
    int32_t next = args.held + 1;
    if (evict) {
      KF_ASSIGN_OR_RETURN(next, SharedVictim(context, args));
      KF_CHECK(next >= 0);
    }
    for (const SharedLayer& layer : args.layers) {
      std::fill_n(layer.free_slot, shape.kv_heads, next);
    }
    return absl::OkStatus();
  }
  const int64_t heads = std::ssize(args.layers) * shape.kv_heads;
  context.pool.ParallelFor(heads, [&](int64_t i, int /*worker*/) {
    const SharedLayer& layer =
        args.layers[static_cast<size_t>(i / shape.kv_heads)];
    const auto head = static_cast<int32_t>(i % shape.kv_heads);
    const int32_t victim =
        KernelsOf(context.level)
            .find_victim({&layout, MakeHeadPages(shape, layer.caches[0], head),
                          args.held + 1, args.position - args.recent,
                          MakeAgeSpec(args.age)});
    KF_CHECK(victim >= 0);
    layer.free_slot[head] = victim;
  });
  return absl::OkStatus();
}

absl::Status CopyPages(AttentionContext& context,
                       const AttentionShape& shape,
                       std::byte* base,
                       std::span<const PageCopy> copies) {
  const size_t bytes = PageBytes(shape);
  context.pool.ParallelFor(std::ssize(copies), [&](int64_t i, int /*worker*/) {
    const PageCopy& copy = copies[static_cast<size_t>(i)];
    std::memcpy(base + static_cast<size_t>(copy.to) * bytes,
                base + static_cast<size_t>(copy.from) * bytes, bytes);
  });
  return absl::OkStatus();
}

}  // namespace kf::cpu
