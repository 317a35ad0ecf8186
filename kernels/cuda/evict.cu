#include "kernels/cuda/evict.h"
#include "kernels/cuda/gpu.h"
#include "kernels/cuda/page_access.cuh"
#include "kernels/cuda/score.cuh"
#include "kernels/cuda/victim.cuh"

namespace kf::cuda {
namespace {

constexpr int kSlotThreads = 128;
constexpr int kEvictThreads = 256;

unsigned BlocksFor(int32_t slots) {
  return static_cast<unsigned>((slots + kSlotThreads - 1) / kSlotThreads);
}

__device__ int32_t ThreadSlot() {
  return static_cast<int32_t>(blockIdx.x * kSlotThreads + threadIdx.x);
}

// A thread has a slot of a head. The sum is set, not added, in each cache: a
// page that beams have in common gets it more than once, from this thread.
__global__ void __launch_bounds__(kSlotThreads)
    AddRowScoresKernel(AddRowScoresWork work) {
  const int32_t slot = ThreadSlot();
  const auto head = static_cast<int32_t>(blockIdx.y);
  const int32_t slots = work.held + 1;
  if (slot >= slots) return;
  float sum = *ScoreAt(work.layout, work.caches[0], head, slot);
  for (int32_t row = 0; row < work.row_count; ++row) {
    sum += work.row_scores[row][int64_t{head} * slots + slot];
  }
  for (int32_t i = 0; i < work.cache_count; ++i) {
    *ScoreAt(work.layout, work.caches[i], head, slot) = sum;
  }
}

// A thread sums a slot's scores, in order of layer, then head.
__global__ void __launch_bounds__(kSlotThreads) SumKernel(EvictWork work) {
  const int32_t slot = ThreadSlot();
  if (slot > work.held) return;
  float sum = 0.0F;
  for (int32_t layer = 0; layer < work.layers; ++layer) {
    for (int32_t head = 0; head < work.layout.kv_heads; ++head) {
      sum += *ScoreAt(work.layout, work.items[layer].cache, head, slot);
    }
  }
  work.sums[slot] = sum;
}

// A block finds the victim of a head, or of all.
__global__ void __launch_bounds__(kEvictThreads) EvictKernel(EvictWork work) {
  const auto choice = static_cast<int32_t>(blockIdx.x);
  const int32_t kv_heads = work.layout.kv_heads;
  const EvictItem& item = work.items[choice / kv_heads];
  const int32_t head = choice % kv_heads;
  Victim worst;
  for (auto slot = static_cast<int32_t>(threadIdx.x); slot <= work.held;
       slot += kEvictThreads) {
    const int32_t position = *PositionAt(work.layout, item.cache, head, slot);
    if (position > work.position - work.recent) continue;
    const float score = work.shared
                            ? work.sums[slot]
                            : *ScoreAt(work.layout, item.cache, head, slot);
    worst = WorseOf(
        worst, MakeVictim(RankOf(score, work.age, position), position, slot));
  }
  const int32_t victim = WorstOfBlock<kEvictThreads>(worst);
  if (threadIdx.x != 0) return;
  if (!work.shared) {
    item.free_slot[head] = victim;
    return;
  }
  for (int32_t i = 0; i < work.layers * kv_heads; ++i) {
    work.items[i / kv_heads].free_slot[i % kv_heads] = victim;
  }
}

// Nothing leaves: the next token goes behind the last.
__global__ void __launch_bounds__(kSlotThreads) KeepAllKernel(EvictWork work) {
  const int32_t i = ThreadSlot();
  const int32_t kv_heads = work.layout.kv_heads;
  if (i >= work.layers * kv_heads) return;
  work.items[i / kv_heads].free_slot[i % kv_heads] = work.held + 1;
}

}  // namespace

void AddRowScores(gpu::Stream stream, const AddRowScoresWork& work) {
  const dim3 grid(BlocksFor(work.held + 1),
                  static_cast<unsigned>(work.layout.kv_heads));
  gpu::launch(stream, grid, kSlotThreads, 0, AddRowScoresKernel, work);
}

void Evict(gpu::Stream stream, const EvictWork& work) {
  const int32_t heads = work.layers * work.layout.kv_heads;
  if (work.held + 1 <= work.budget) {
    gpu::launch(stream, BlocksFor(heads), kSlotThreads, 0, KeepAllKernel, work);
    return;
  }
  if (work.shared) {
    gpu::launch(stream, BlocksFor(work.held + 1), kSlotThreads, 0, SumKernel,
                work);
  }
  gpu::launch(stream, work.shared ? 1U : static_cast<unsigned>(heads),
              kEvictThreads, 0, EvictKernel, work);
}

}  // namespace kf::cuda
