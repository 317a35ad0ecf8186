#include "kernels/core/noise.h"
#include "kernels/cuda/gpu.h"
#include "kernels/cuda/logit_row.cuh"
#include "kernels/cuda/radix_select.cuh"
#include "kernels/cuda/sample.h"
#include "kernels/cuda/score.cuh"

namespace kf::cuda {
namespace {

// Working memory of a row, in words: sums of blocks first, which are doubles.
struct RowMemory {
  double* block_sums;  // [blocks]
  float* adjusted;     // [vocabulary]
  float* weights;      // [vocabulary]
  float* gathered;     // [vocabulary]: logits of `kept`
  int32_t* kept;       // [vocabulary]
  int32_t* chosen;     // [kMostCandidates]: places in the row
};

constexpr int32_t SumBlocks(int32_t count) {
  return (count + kSumBlock - 1) / kSumBlock;
}

__device__ RowMemory MemoryOf(const SampleWork& work, int64_t row_words) {
  uint32_t* words = work.memory + int64_t{blockIdx.x} * row_words;
  RowMemory m;
  m.block_sums = reinterpret_cast<double*>(words);
  m.adjusted =
      reinterpret_cast<float*>(m.block_sums + SumBlocks(work.vocabulary));
  m.weights = m.adjusted + work.vocabulary;
  m.gathered = m.weights + work.vocabulary;
  m.kept = reinterpret_cast<int32_t*>(m.gathered + work.vocabulary);
  m.chosen = m.kept + work.vocabulary;
  return m;
}

// The row to choose from.
struct Row {
  const float* logits;  // [count]
  int32_t count;
  const int32_t* ids;  // [count], ascending; null: a place is an id
  __device__ int32_t IdOf(int32_t place) const {
    return ids == nullptr ? place : ids[place];
  }
};

struct Candidate {
  float logit;
  float weight;
  int32_t place;  // in the row: of equal logits the smaller goes first
};

__device__ float ToFiniteFloat(double x) {
  constexpr double kLimit = FLT_MAX;
  return static_cast<float>(x < -kLimit ? -kLimit : x > kLimit ? kLimit : x);
}

// One logit with bias and penalties; -inf stays.
__device__ float Changed(const SampleItem& item,
                         const LogitChange& change,
                         bool ban,
                         float logit) {
  if (logit == -INFINITY) return logit;
  if (change.banned) {
    if (ban) return -INFINITY;
  } else if (change.bias != 0.0) {
    logit = ToFiniteFloat(__dadd_rn(static_cast<double>(logit), change.bias));
  }
  if (!change.seen) return logit;
  const double repetition = item.options.repetition_penalty == 0.0
                                ? 1.0
                                : item.options.repetition_penalty;
  double x = static_cast<double>(logit);
  x = x > 0.0 ? x / repetition : __dmul_rn(x, repetition);
  if (change.generated != 0) {
    x = __dadd_rn(x, -item.options.presence_penalty);
    x = __dadd_rn(x, -__dmul_rn(item.options.frequency_penalty,
                                static_cast<double>(change.generated)));
  }
  return ToFiniteFloat(x);
}

// What rules tokens out gives way where it would leave nothing: first the mask,
// then the bans.
__device__ RowScan Adjust(const SampleItem& item,
                          int32_t vocabulary,
                          float* adjusted) {
  const auto thread = static_cast<int32_t>(threadIdx.x);
  RowScan scan = {};
  for (int attempt = 0; attempt < 3; ++attempt) {
    for (int32_t i = thread; i < vocabulary; i += kRowThreads) {
      adjusted[i] = item.logits[i];
    }
    __syncthreads();
    for (int32_t i = thread; i < item.change_count; i += kRowThreads) {
      const LogitChange& change = item.changes[i];
      adjusted[change.id] =
          Changed(item, change, attempt < 2, adjusted[change.id]);
    }
    __syncthreads();
    for (int32_t i = thread; attempt == 0 && i < item.forbidden_count;
         i += kRowThreads) {
      adjusted[item.forbidden[i]] = -INFINITY;
    }
    __syncthreads();
    scan = ScanRow(adjusted, vocabulary);
    if (!scan.bad) break;
  }
  return scan;
}

// Keeps the k largest, in order of id.
__device__ Row KeepTopK(const Row& row, int32_t k, const RowMemory& memory) {
  SelectLargest<kRowThreads>(
      row.count, k, [&](int32_t i) { return RankBits(row.logits[i]); },
      memory.kept);
  for (auto i = static_cast<int32_t>(threadIdx.x); i < k; i += kRowThreads) {
    memory.gathered[i] = row.logits[memory.kept[i]];
  }
  return {memory.gathered, k, memory.kept};
}

// Weights relative to the largest, and their total, block by block.
__device__ double Weigh(const Row& row,
                        float largest,
                        double temperature,
                        const RowMemory& memory) {
  const auto thread = static_cast<int32_t>(threadIdx.x);
  const double scale = fmin(1.0 / temperature, 1e300);
  // Two factors where one float would not hold it.
  double first = fmin(fmax(scale, 1e-76), 1e76);
  double second = 1.0;
  if (first < 1e-30 || first > 1e30) first = second = sqrt(first);
  const auto a = static_cast<float>(first);
  const auto b = static_cast<float>(second);
  for (int32_t i = thread; i < row.count; i += kRowThreads) {
    memory.weights[i] =
        RowExp(__fmul_rn(__fmul_rn(__fsub_rn(row.logits[i], largest), a), b));
  }
  __syncthreads();
  const int32_t blocks = SumBlocks(row.count);
  for (int32_t block = thread / kWarp; block < blocks; block += kRowWarps) {
    const int32_t begin = block * kSumBlock;
    const double sum =
        WarpRowSum(memory.weights + begin, min(kSumBlock, row.count - begin),
                   thread % kWarp);
    if (thread % kWarp == 0) memory.block_sums[block] = sum;
  }
  __syncthreads();
  double total = 0.0;
  for (int32_t i = 0; i < blocks; ++i) {
    total = __dadd_rn(total, memory.block_sums[i]);
  }
  return total;
}

// One thread: whole blocks are passed over by their sums.
__device__ int32_t DrawFromRow(const Row& row,
                               double point,
                               const RowMemory& memory) {
  double sum = 0.0;
  double before = 0.0;
  int32_t begin = 0;
  for (int32_t i = 0; i < SumBlocks(row.count) && sum <= point; ++i) {
    if (memory.block_sums[i] == 0.0) continue;
    begin = i * kSumBlock;
    before = sum;
    sum = __dadd_rn(sum, memory.block_sums[i]);
  }
  int32_t last = begin;
  sum = before;
  const int32_t end = min(begin + kSumBlock, row.count);
  for (int32_t i = begin; i < end && sum <= point; ++i) {
    if (memory.weights[i] == 0.0F) continue;
    last = i;
    sum = __dadd_rn(sum, static_cast<double>(memory.weights[i]));
  }
  return row.IdOf(last);
}

__device__ bool GoesBefore(const Candidate& a, const Candidate& b) {
  return a.logit > b.logit || (a.logit == b.logit && a.place < b.place);
}

// Bitonic; what is beyond `count` up to the next power of two goes last.
__device__ void SortCandidates(Candidate* candidates, int32_t count) {
  int32_t size = 1;
  while (size < count) size *= 2;
  const auto thread = static_cast<int32_t>(threadIdx.x);
  for (int32_t i = count + thread; i < size; i += kRowThreads) {
    candidates[i] = {-INFINITY, 0.0F, INT32_MAX};
  }
  __syncthreads();
  for (int32_t run = 2; run <= size; run *= 2) {
    for (int32_t gap = run / 2; gap > 0; gap /= 2) {
      for (int32_t i = thread; i < size; i += kRowThreads) {
        const int32_t other = i ^ gap;
        if (other < i) continue;
        const bool ascending = (i & run) == 0;
        if (GoesBefore(candidates[other], candidates[i]) == ascending) {
          const Candidate swapped = candidates[i];
          candidates[i] = candidates[other];
          candidates[other] = swapped;
        }
      }
      __syncthreads();
    }
  }
}

// The best of the row, `count` of them, best first, in shared memory.
__device__ void TakeBest(const Row& row,
                         int32_t count,
                         const float* weights,
                         int32_t* chosen,
                         Candidate* candidates) {
  SelectLargest<kRowThreads>(
      row.count, count, [&](int32_t i) { return RankBits(row.logits[i]); },
      chosen);
  for (auto i = static_cast<int32_t>(threadIdx.x); i < count;
       i += kRowThreads) {
    const int32_t place = chosen[i];
    candidates[i] = {row.logits[place],
                     weights == nullptr ? 0.0F : weights[place], place};
  }
  SortCandidates(candidates, count);
}

// The candidates by min-p alone: all of at least `least`, in order of id.
// Returns how many there are; more than kMostCandidates are not listed.
__device__ int32_t ListAbove(const Row& row,
                             float least,
                             const float* weights,
                             Candidate* candidates) {
  KF_GPU_SHARED(int32_t[kRowWarps], found);
  const auto thread = static_cast<int32_t>(threadIdx.x);
  int32_t before = 0;
  for (int32_t first = 0; first < row.count; first += kRowThreads) {
    const int32_t i = first + thread;
    const bool here = i < row.count && weights[i] >= least;
    const uint32_t lanes = __ballot_sync(kAllLanes, here);
    if (thread % kWarp == 0) found[thread / kWarp] = __popc(lanes);
    __syncthreads();
    int32_t at = before + __popc(lanes & ((1U << (thread % kWarp)) - 1));
    for (int w = 0; w < kRowWarps; ++w) {
      if (w < thread / kWarp) at += found[w];
      before += found[w];
    }
    if (here && at < kMostCandidates) {
      candidates[at] = {row.logits[i], weights[i], i};
    }
    __syncthreads();  // `found` is read, and may be written again
  }
  return before;
}

// One thread draws from candidates [0, count) that min_p leaves, in the order
// last .. first, or first .. last.
__device__ int32_t DrawFromCandidates(const Row& row,
                                      const Candidate* candidates,
                                      int32_t count,
                                      bool backwards,
                                      double min_p,
                                      double u) {
  float largest = 0.0F;
  for (int32_t i = 0; i < count; ++i) {
    largest = fmaxf(largest, candidates[i].weight);
  }
  const double floor = min_p * static_cast<double>(largest);
  const auto at = [&](int32_t i) {
    return candidates[backwards ? count - 1 - i : i];
  };
  const auto kept = [&](const Candidate& c) {
    return min_p == 0.0 || !(static_cast<double>(c.weight) < floor);
  };
  double total = 0.0;
  for (int32_t i = 0; i < count; ++i) {
    if (kept(at(i)))
      total = __dadd_rn(total, static_cast<double>(at(i).weight));
  }
  const double point = u * total;
  double sum = 0.0;
  int32_t last = 0;
  for (int32_t i = 0; i < count; ++i) {
    if (!kept(at(i))) continue;
    last = at(i).place;
    sum = __dadd_rn(sum, static_cast<double>(at(i).weight));
    if (point < sum) break;
  }
  return row.IdOf(last);
}

// One thread: how many of the best hold `goal`; -1: more than are listed.
__device__ int32_t CountTopP(const Candidate* best,
                             int32_t listed,
                             int32_t row_count,
                             float least,
                             double goal) {
  double sum = 0.0;
  for (int32_t i = 0; i < listed; ++i) {
    // Not a candidate, nor is any later one: a weight falls with its logit, but
    // for rounding.
    if (best[i].weight < least) return i;
    sum = __dadd_rn(sum, static_cast<double>(best[i].weight));
    if (!(sum < goal)) return i + 1;
  }
  return listed == row_count ? listed : -1;
}

// top-p and min-p. All threads get the same state; `id` is thread 0's.
__device__ SampleState DrawFiltered(const SampleItem& item,
                                    const Row& row,
                                    double total,
                                    double u,
                                    const RowMemory& memory,
                                    int32_t* id) {
  KF_GPU_SHARED(Candidate[kMostCandidates], candidates);
  KF_GPU_SHARED(int32_t, kept);
  const bool top_p = item.options.top_p > 0.0 && item.options.top_p < 1.0;
  const double floor = top_p ? (1.0 - item.options.top_p) * total /
                                   (2.0 * static_cast<double>(row.count))
                             : item.options.min_p;
  // Rounded down, and above the weights that are 0.
  const float least =
      fmaxf(nextafterf(static_cast<float>(floor), 0.0F), FLT_MIN);
  if (top_p) {
    const int32_t listed = min(kMostCandidates, row.count);
    TakeBest(row, listed, memory.weights, memory.chosen, candidates);
    if (threadIdx.x == 0) {
      kept = CountTopP(candidates, listed, row.count, least,
                       item.options.top_p * total);
    }
  } else {
    const int32_t count = ListAbove(row, least, memory.weights, candidates);
    if (threadIdx.x == 0) kept = count <= kMostCandidates ? count : -1;
  }
  __syncthreads();  // what is kept
  if (kept < 0) return SampleState::kUndecided;
  if (threadIdx.x == 0) {
    *id =
        DrawFromCandidates(row, candidates, kept, top_p, item.options.min_p, u);
  }
  return SampleState::kChosen;
}

// The token of a row that is not bad. `id` is thread 0's.
__device__ SampleState Choose(const SampleItem& item,
                              int32_t vocabulary,
                              const RowScan& raw,
                              const RowMemory& memory,
                              int32_t* id) {
  Row row = {item.logits, vocabulary, nullptr};
  RowScan scan = raw;
  if (item.change_count > 0 || item.forbidden_count > 0) {
    scan = Adjust(item, vocabulary, memory.adjusted);
    row.logits = memory.adjusted;
  }
  if (item.options.temperature == 0.0) {
    *id = scan.best;
    return SampleState::kChosen;
  }
  if (item.options.top_k > 0 &&
      item.options.top_k < static_cast<uint32_t>(vocabulary)) {
    row = KeepTopK(row, static_cast<int32_t>(item.options.top_k), memory);
  }
  __syncthreads();  // the row that is left
  const double total =
      Weigh(row, scan.largest, item.options.temperature, memory);
  const double u =
      DrawUniform(item.options.seed, item.options.step, item.options.stream);
  const bool top_p = item.options.top_p > 0.0 && item.options.top_p < 1.0;
  if (top_p || item.options.min_p > 0.0) {
    return DrawFiltered(item, row, total, u, memory, id);
  }
  if (threadIdx.x == 0) *id = DrawFromRow(row, u * total, memory);
  return SampleState::kChosen;
}

// The sum of exp(x - largest), in the order of SumOfExponentials: tile by tile
// the block makes the exponentials, and a warp adds them.
__device__ double ExpSum(const float* x, int32_t count, float largest) {
  constexpr int32_t kTile = 4 * kRowThreads;
  KF_GPU_SHARED(float[kTile], tile);
  const auto thread = static_cast<int32_t>(threadIdx.x);
  const int32_t lane = thread % kWarp;
  const int32_t place = ChainPlace(lane);
  double sum = 0.0;
  for (int32_t begin = 0; begin < count; begin += kTile) {
    for (int32_t i = thread; i < kTile; i += kRowThreads) {
      tile[i] =
          begin + i < count ? RowExp(__fsub_rn(x[begin + i], largest)) : 0.0F;
    }
    __syncthreads();
    if (thread < kWarp) {
      const int32_t end = min(kTile, count - begin);
      int32_t i = 0;
      for (; i + 16 <= end; i += 16) {
        sum =
            __dadd_rn(sum, __dadd_rn(static_cast<double>(tile[i + place]),
                                     static_cast<double>(tile[i + place + 2])));
      }
      // The rest, by fours, goes to the first chain.
      for (; i < end; i += 4) {
        if (lane % 8 >= 2) continue;
        sum =
            __dadd_rn(sum, __dadd_rn(static_cast<double>(tile[i + place]),
                                     static_cast<double>(tile[i + place + 2])));
      }
    }
    __syncthreads();  // the tile is read
  }
  return ChainTotal(sum);
}

// What the log-probabilities of a row are made of; thread 0 writes them.
__device__ void Describe(const SampleItem& item,
                         int32_t vocabulary,
                         const RowScan& scan,
                         int32_t id,
                         const RowMemory& memory,
                         SampledToken* token) {
  KF_GPU_SHARED(int32_t, own_id);
  KF_GPU_SHARED(uint32_t, better);
  KF_GPU_SHARED(Candidate[kMostTopLogprobs], best);
  const auto thread = static_cast<int32_t>(threadIdx.x);
  if (thread == 0) {
    own_id = id;
    better = 0;
  }
  __syncthreads();
  const float own = item.logits[own_id];
  uint32_t count = 0;
  for (int32_t i = thread; i < vocabulary; i += kRowThreads) {
    const float x = item.logits[i];
    if (x > own || (x == own && i < own_id)) ++count;
  }
  count = __reduce_add_sync(kAllLanes, count);
  if (thread % kWarp == 0) atomicAdd(&better, count);
  const double exp_sum = ExpSum(item.logits, vocabulary, scan.largest);
  if (thread == 0) {
    token->rank = better + 1;
    token->logit = own;
    token->largest = scan.largest;
    token->exp_sum = exp_sum;
  }
  if (item.options.top_logprobs == 0) return;
  TakeBest({item.logits, vocabulary, nullptr}, item.options.top_logprobs,
           nullptr, memory.chosen, best);
  for (int32_t i = thread; i < item.options.top_logprobs; i += kRowThreads) {
    item.top_ids[i] = best[i].place;
    item.top_logits[i] = best[i].logit;
  }
}

// A block has a row.
__global__ void __launch_bounds__(kRowThreads)
    SampleKernel(SampleWork work, int64_t row_words) {
  const SampleItem& item = work.items[blockIdx.x];
  const RowMemory memory = MemoryOf(work, row_words);
  SampledToken* token = work.out + blockIdx.x;
  const RowScan scan = ScanRow(item.logits, work.vocabulary);
  int32_t id = 0;
  SampleState state = SampleState::kChosen;
  if (scan.bad) {
    state = SampleState::kBad;
  } else if (item.options.forced != kNoToken) {
    id = item.options.forced;
  } else {
    state = Choose(item, work.vocabulary, scan, memory, &id);
  }
  if (threadIdx.x == 0) {
    token->state = state;
    token->id = id;
  }
  if (state == SampleState::kChosen && item.options.logprobs) {
    Describe(item, work.vocabulary, scan, id, memory, token);
  }
}

}  // namespace

int64_t SampleWords(int32_t vocabulary) {
  const int64_t words = 2 * int64_t{SumBlocks(vocabulary)} +
                        4 * int64_t{vocabulary} + kMostCandidates;
  return (words + 1) / 2 * 2;
}

void Sample(gpu::Stream stream, const SampleWork& work) {
  if (work.rows == 0) return;
  gpu::launch(stream, static_cast<unsigned>(work.rows), kRowThreads, 0,
              SampleKernel, work, SampleWords(work.vocabulary));
}

}  // namespace kf::cuda
