#include "kernels/cuda/compact.h"
#include "kernels/cuda/gpu.h"
#include "kernels/cuda/page_access.cuh"
#include "kernels/cuda/radix_select.cuh"
#include "kernels/cuda/score.cuh"

namespace kf::cuda {
namespace {

constexpr int kSumThreads = 128;
constexpr int kSelectThreads = 512;
constexpr int kMoveThreads = 256;
// Blocks that share a head's move, where it is not in place.
constexpr int32_t kMoveBlocks = 16;
constexpr int32_t kMoveSharedBytes = 48 * 1024;

__device__ float FactoredScore(const CompactWork& work,
                               const CompactItem& item,
                               int32_t head,
                               int32_t token) {
  return *ScoreAt(work.layout, item.from, head, token) * work.score_factor;
}

// A thread sums a token's scores, in order of layer, then head.
__global__ void __launch_bounds__(kSumThreads)
    SumScoresKernel(CompactWork work) {
  const auto token =
      static_cast<int32_t>(blockIdx.x * kSumThreads + threadIdx.x);
  if (token >= work.tokens) return;
  float sum = 0.0F;
  for (int32_t layer = 0; layer < work.layers; ++layer) {
    for (int32_t head = 0; head < work.layout.kv_heads; ++head) {
      sum += FactoredScore(work, work.items[layer], head, token);
    }
  }
  work.sums[token] = sum;
}

// A block makes one choice, of budget < tokens.
__global__ void __launch_bounds__(kSelectThreads)
    SelectKernel(CompactWork work) {
  const auto choice = static_cast<int32_t>(blockIdx.x);
  const CompactItem& item = work.items[choice / work.layout.kv_heads];
  const int32_t head = choice % work.layout.kv_heads;
  const int32_t older = work.tokens - work.recent;
  const int32_t best = work.budget - work.recent;
  int32_t* kept = work.kept + int64_t{choice} * work.budget;
  if (best > 0) {
    SelectLargest<kSelectThreads>(
        older, best,
        [&](int32_t token) {
          const float score = work.shared
                                  ? work.sums[token]
                                  : FactoredScore(work, item, head, token);
          return RankBits(RankOf(score, work.age, token));
        },
        kept);
  }
  for (auto i = static_cast<int32_t>(threadIdx.x); i < work.recent;
       i += kSelectThreads) {
    kept[best + i] = older + i;
  }
}

// A token's row of K and V, in units of 16 bytes.
struct RowUnits {
  int32_t half;  // of K, and of V
  int32_t total;
};
__device__ RowUnits UnitsOf(const PageLayout& layout) {
  const int32_t half =
      layout.padded_dim * layout.element_bytes / int32_t{sizeof(uint4)};
  return {half, 2 * half};
}

// Unit `unit` of a slot: of K first, then of V.
__device__ uint4* UnitAt(const PageLayout& layout,
                         const PageList& list,
                         int32_t head,
                         int32_t slot,
                         int32_t unit,
                         RowUnits units) {
  unsigned char* block = BlockBytes(layout, list, head, slot / kSlots);
  const bool in_k = unit < units.half;
  auto* rows = reinterpret_cast<uint4*>(in_k ? block : block + layout.v_offset);
  return rows + slot % kSlots * units.half + (in_k ? unit : unit - units.half);
}

// Block (x, y) moves tiles x, x + gridDim.x, .. of the slots of head y. A tile
// is read whole before any of it is written. In place, too, nothing is lost: a
// token never moves up, so what a later tile reads lies beyond this one, and
// one block goes through the tiles in order.
__global__ void __launch_bounds__(kMoveThreads)
    MoveKernel(CompactWork work, int32_t tile_slots, int32_t kept_slots) {
  const PageLayout& layout = work.layout;
  const auto choice = static_cast<int32_t>(blockIdx.y);
  const CompactItem& item = work.items[choice / layout.kv_heads];
  const int32_t head = choice % layout.kv_heads;
  const RowUnits units = UnitsOf(layout);
  uint4* rows = gpu::dyn_smem<uint4>();  // [tile_slots][units.total]
  auto* positions = reinterpret_cast<int32_t*>(rows + tile_slots * units.total);
  auto* scores = reinterpret_cast<float*>(positions + tile_slots);
  const auto thread = static_cast<int32_t>(threadIdx.x);
  const bool all = work.budget >= work.tokens;
  const int32_t* kept =
      work.kept + (work.shared ? 0 : int64_t{choice} * work.budget);
  for (auto tile = static_cast<int32_t>(blockIdx.x);
       tile * tile_slots < kept_slots;
       tile += static_cast<int32_t>(gridDim.x)) {
    const int32_t first = tile * tile_slots;
    const int32_t count = min(tile_slots, kept_slots - first);
    for (int32_t i = thread; i < count * units.total; i += kMoveThreads) {
      const int32_t slot = first + i / units.total;
      rows[i] = *UnitAt(layout, item.from, head, all ? slot : kept[slot],
                        i % units.total, units);
    }
    for (int32_t i = thread; i < count; i += kMoveThreads) {
      const int32_t token = all ? first + i : kept[first + i];
      positions[i] = *PositionAt(layout, item.from, head, token);
      scores[i] = FactoredScore(work, item, head, token);
    }
    __syncthreads();  // the tile is read
    for (int32_t i = thread; i < count * units.total; i += kMoveThreads) {
      *UnitAt(layout, item.to, head, first + i / units.total, i % units.total,
              units) = rows[i];
    }
    for (int32_t i = thread; i < count; i += kMoveThreads) {
      *PositionAt(layout, item.to, head, first + i) = positions[i];
      *ScoreAt(layout, item.to, head, first + i) = scores[i];
    }
    // What a thread staged it alone reads back, so the next tile may follow.
  }
  if (blockIdx.x == 0 && thread == 0) item.free_slot[head] = kept_slots;
}

}  // namespace

void Compact(gpu::Stream stream, const CompactWork& work) {
  const PageLayout& layout = work.layout;
  const int32_t kept = work.budget < work.tokens ? work.budget : work.tokens;
  const auto heads = static_cast<unsigned>(work.layers * layout.kv_heads);
  if (kept < work.tokens) {
    if (work.shared) {
      const auto blocks =
          static_cast<unsigned>((work.tokens + kSumThreads - 1) / kSumThreads);
      gpu::launch(stream, blocks, kSumThreads, 0, SumScoresKernel, work);
    }
    gpu::launch(stream, work.shared ? 1U : heads, kSelectThreads, 0,
                SelectKernel, work);
  }
  const int32_t slot_bytes = 2 * layout.padded_dim * layout.element_bytes + 8;
  int32_t tile_slots = kMoveSharedBytes / slot_bytes / kSlots * kSlots;
  if (tile_slots > 64) tile_slots = 64;
  const int32_t tiles = (kept + tile_slots - 1) / tile_slots;
  const int32_t most = work.in_place ? 1 : kMoveBlocks;
  const auto blocks = static_cast<unsigned>(tiles < most ? tiles : most);
  gpu::launch(stream, dim3(blocks, heads), kMoveThreads,
              static_cast<size_t>(tile_slots * slot_bytes), MoveKernel, work,
              tile_slots, kept);
}

}  // namespace kf::cuda
