// Attending over a chunk of one sequence's keys, and putting chunks together,
// compiled once per SIMD level.

#include "kernels/cpu/attention_simd.h"
#include "kernels/cpu/attention_vec.h"
#include "kernels/cpu/noise_vec.h"

namespace kf::cpu::KF_SIMD_NS {
namespace {

// Fields of a partial's header.
constexpr int kMax = 0;
constexpr int kSum = 1;
constexpr int kLargest = 2;
constexpr int kNoisySum = 3;

// Heads taken together: each line of K and V is loaded once for all of them.
constexpr int kMaxHeads = 4;

// Pages taken together, so that there are enough independent accumulators.
constexpr int PagesAtOnce(int heads) {
  if (KF_SIMD_LEVEL == 0) return 1;
  if (KF_SIMD_LEVEL == 1) return heads <= 2 ? 2 : 1;
  return heads <= 2 ? 4 : 2;
}

// Logits of kHeads query heads from head `first` on.
template <int kHeads>
void ChunkLogits(const DecodeChunk& chunk,
                 int32_t first,
                 LineFetcher& fetcher) {
  const HeadLayout& layout = *chunk.layout;
  QkWork work = {chunk.keys,
                 (chunk.slots + kSlots - 1) / kSlots,
                 chunk.q + int64_t{first} * layout.query_words,
                 layout.query_words,
                 kHeads,
                 layout.steps,
                 layout.scale,
                 chunk.logits + int64_t{first} * kMaxDecodeChunk,
                 kMaxDecodeChunk};
  LineFetcher local = fetcher;  // in registers
  // Scores leave time to fetch the rest.
  const Ahead ahead = {&local, !chunk.score.enabled};
  if (layout.bytes) {
    QkLogits<ByteKeys, kHeads, PagesAtOnce(kHeads)>(work, ahead);
  } else if (layout.bf16) {
    if constexpr (kHasDotBf16) {
      QkLogits<Bf16Keys, kHeads, PagesAtOnce(kHeads)>(work, ahead);
    } else {
      SplitPairs(work.q, int64_t{kHeads} * layout.steps, chunk.split);
      work.q = chunk.split;
      work.q_stride = 2 * layout.steps;
      QkLogits<SplitBf16Keys, kHeads, PagesAtOnce(kHeads)>(work, ahead);
    }
  } else {
    QkLogits<FloatKeys, kHeads, PagesAtOnce(kHeads)>(work, ahead);
  }
  fetcher = local;
}

// out[r][c] = sum over the chunk of p[r][slot] v[slot][c].
template <int kHeads, int kVecs, typename Value>
void WeightedValues(const DecodeChunk& chunk,
                    int32_t first,
                    int32_t channel,
                    LineFetcher& fetcher,
                    float* out,
                    int64_t out_stride) {
  const HeadLayout& layout = *chunk.layout;
  VF acc[kHeads][kVecs] = {};
  LineFetcher local = fetcher;  // in registers
  for (int32_t slot = 0; slot < chunk.slots; slot += kSlots) {
    const int32_t slots =
        chunk.slots - slot < kSlots ? chunk.slots - slot : kSlots;
    const auto values_of = [&](int32_t page) {
      return reinterpret_cast<const Value*>(Block(chunk.pages, page) +
                                            layout.v_offset) +
             channel;
    };
    const int32_t page = slot / kSlots;
    const bool last = slot + kSlots >= chunk.slots;
    PvTile<kHeads, kVecs>(
        chunk.logits + int64_t{first} * kMaxDecodeChunk + slot, kMaxDecodeChunk,
        values_of(page), values_of(last ? page : page + 1), layout.value_stride,
        slots, acc, Ahead{&local, true});
  }
  fetcher = local;
#pragma GCC unroll 16
  for (int r = 0; r < kHeads; ++r) {
    StoreSums(static_cast<const Value*>(nullptr), acc[r],
              out + r * out_stride + channel);
  }
}

template <int kHeads, typename Value>
void ChunkValues(const DecodeChunk& chunk,
                 int32_t first,
                 LineFetcher& fetcher,
                 float* out,
                 int64_t out_stride) {
  // Accumulators for 4 heads fit 32 registers, or 16 with half the channels.
  constexpr int kVecs = KF_SIMD_LEVEL >= 2 ? 4 : kHeads <= 2 ? 4 : 2;
  const int32_t width = chunk.layout->padded_d;
  int32_t channel = 0;
  for (; channel + kVecs * kLanes <= width; channel += kVecs * kLanes) {
    WeightedValues<kHeads, kVecs, Value>(chunk, first, channel, fetcher, out,
                                         out_stride);
  }
  for (; channel < width; channel += kLanes) {
    WeightedValues<kHeads, 1, Value>(chunk, first, channel, fetcher, out,
                                     out_stride);
  }
}

void HeadLogits(const DecodeChunk& chunk,
                int32_t first,
                int32_t heads,
                LineFetcher& fetcher) {
  switch (heads) {
    case 1:
      return ChunkLogits<1>(chunk, first, fetcher);
    case 2:
      return ChunkLogits<2>(chunk, first, fetcher);
    case 3:
      return ChunkLogits<3>(chunk, first, fetcher);
    default:
      return ChunkLogits<4>(chunk, first, fetcher);
  }
}

template <typename Value>
void HeadValues(const DecodeChunk& chunk,
                int32_t first,
                int32_t heads,
                LineFetcher& fetcher) {
  const int64_t stride = kPartialHeader + chunk.layout->padded_d;
  float* out = chunk.partial + first * stride + kPartialHeader;
  switch (heads) {
    case 1:
      return ChunkValues<1, Value>(chunk, first, fetcher, out, stride);
    case 2:
      return ChunkValues<2, Value>(chunk, first, fetcher, out, stride);
    case 3:
      return ChunkValues<3, Value>(chunk, first, fetcher, out, stride);
    default:
      return ChunkValues<4, Value>(chunk, first, fetcher, out, stride);
  }
}

// Softmax of one head's logits over the chunk, into the partial's header.
void ChunkSoftmax(const DecodeChunk& chunk,
                  const int32_t* positions,
                  int32_t head,
                  LineFetcher& fetcher) {
  float* x = chunk.logits + int64_t{head} * kMaxDecodeChunk;
  LineFetcher local = fetcher;
  const auto fetch = [&local]() __attribute__((always_inline)) {
    local.Fetch();
    local.Fetch();
  };
  const RowSums sums =
      chunk.score.enabled
          ? ScoredSoftmax(chunk.score, x, chunk.slots,
                          ListedPositions{positions}, chunk.words[head],
                          chunk.numerators + head * chunk.numerators_stride,
                          fetch)
          : CleanSoftmax(x, chunk.slots);
  fetcher = local;
  float* header =
      chunk.partial + int64_t{head} * (kPartialHeader + chunk.layout->padded_d);
  header[kMax] = sums.max;
  header[kSum] = sums.sum;
  header[kLargest] = sums.largest;
  header[kNoisySum] = sums.noisy_sum;
}

// A head's softmax weights times the scales of V, which the integers are then
// added up with.
void ScaleWeights(const DecodeChunk& chunk, int32_t head) {
  float* x = chunk.logits + int64_t{head} * kMaxDecodeChunk;
  for (int32_t slot = 0; slot < chunk.slots; slot += kLanes) {
    const auto* scales =
        reinterpret_cast<const float*>(Block(chunk.pages, slot / kSlots) +
                                       chunk.layout->v_scale_offset) +
        slot % kSlots;
    Store(Load(x + slot) * Load(scales), x + slot);
  }
}

float ExpOne(float x) { return Exp(Set(x))[0]; }

// One head's output from its chunks' partials.
void CombineOutput(const DecodeCombine& combine, int32_t head, int32_t chunks) {
  const HeadLayout& layout = *combine.layout;
  const int64_t width = kPartialHeader + layout.padded_d;
  const float* first = combine.partial + head * width;
  const int64_t stride = combine.group * width;
  float max = first[kMax];
  for (int32_t c = 1; c < chunks; ++c) {
    const float m = first[c * stride + kMax];
    max = m > max ? m : max;
  }
  float* out = combine.out + int64_t{head} * layout.d;
  for (int32_t i = 0; i < layout.d; ++i) out[i] = 0.0F;
  float sum = 0.0F;
  for (int32_t c = 0; c < chunks; ++c) {
    const float* partial = first + c * stride;
    const float weight = ExpOne(partial[kMax] - max);
    sum += weight * partial[kSum];
    for (int32_t i = 0; i < layout.d; ++i) {
      out[i] += weight * partial[kPartialHeader + i];
    }
  }
  const float inverse = 1.0F / sum;
  for (int32_t i = 0; i < layout.d; ++i) out[i] *= inverse;
}

// How far chunk a's noisy exponents lie above those of b, before tau.
float NoisyLead(const float* a, const float* b) {
  return (a[kMax] - b[kMax]) + (a[kLargest] - b[kLargest]);
}

// row[0, count) = x; the row may end inside the vector, and what follows it
// belongs to another thread.
void SetRow(VF x, int32_t count, float* row) {
  const int32_t lanes = count < kLanes ? count : kLanes;
  for (int32_t i = 0; i < lanes; ++i) row[i] = x[i];
}

// What a chunk's numerators of one head count in the whole row: to
// shares[chunk].
void ChunkShares(const DecodeCombine& combine,
                 int32_t head,
                 int32_t chunks,
                 float* shares) {
  const int64_t width = kPartialHeader + combine.layout->padded_d;
  const float* first = combine.partial + head * width;
  const int64_t stride = combine.group * width;
  const float* top = first;
  for (int32_t c = 1; c < chunks; ++c) {
    const float* partial = first + c * stride;
    if (NoisyLead(partial, top) > 0.0F) top = partial;
  }
  const float inverse_tau = InverseTau(combine.score.tau);
  float sum = 0.0F;
  for (int32_t c = 0; c < chunks; ++c) {
    const float* partial = first + c * stride;
    shares[c] = ExpOne(NoisyLead(partial, top) * inverse_tau);
    sum += shares[c] * partial[kNoisySum];
  }
  const float inverse = 1.0F / sum;
  for (int32_t c = 0; c < chunks; ++c) shares[c] *= inverse;
}

// Adds the noisy softmax of the heads, in order, to the page scores or to the
// row's.
void AddScores(const DecodeCombine& combine,
               int32_t chunks,
               int32_t chunk_slots) {
  for (int32_t j = 0; j < combine.group; ++j) {
    ChunkShares(combine, j, chunks, combine.shares + int64_t{j} * chunks);
  }
  LineFetcher fetcher(combine.ahead);
  const bool to_row = combine.row_scores != nullptr;
  const float* shares = combine.shares;
  for (int32_t first = 0; first < combine.slots; first += chunk_slots) {
    const int32_t left = combine.slots - first;
    const int32_t end = first + (left < chunk_slots ? left : chunk_slots);
    for (int32_t slot = first; slot < end; slot += kLanes) {
      float* scores =
          to_row
              ? combine.row_scores + slot
              : reinterpret_cast<float*>(Block(combine.pages, slot / kSlots) +
                                         combine.layout->score_offset) +
                    slot % kSlots;
      VF sum = to_row ? Zero() : Load(scores);
      const float* share = shares;
      const float* numerators = combine.numerators + slot;
      for (int32_t j = 0; j < combine.group; ++j) {
        sum = Fma(Load(numerators), Set(*share), sum);
        numerators += combine.numerators_stride;
        share += chunks;
      }
      if (to_row) {
        SetRow(sum, combine.slots - slot, scores);
      } else {
        Store(sum, scores);
      }
      for (int i = 0; i < kScoreLines * kLanes / kSlots; ++i) fetcher.Fetch();
    }
    ++shares;
  }
}

}  // namespace

void AttendChunk(const DecodeChunk& chunk) {
  const HeadLayout& layout = *chunk.layout;
  int32_t positions[kMaxDecodeChunk];
  if (chunk.score.enabled) {
    for (int32_t slot = 0; slot < chunk.slots; slot += kSlots) {
      __builtin_memcpy(
          positions + slot,
          Block(chunk.pages, slot / kSlots) + layout.position_offset,
          kSlots * sizeof(int32_t));
    }
  }
  LineFetcher fetcher(chunk.ahead);
  for (int32_t slot = 0; layout.bytes && slot < chunk.slots; slot += kSlots) {
    Prefetch(Block(chunk.pages, slot / kSlots) + layout.v_scale_offset);
  }
  for (int32_t first = 0; first < chunk.group; first += kMaxHeads) {
    const int32_t heads =
        chunk.group - first < kMaxHeads ? chunk.group - first : kMaxHeads;
    HeadLogits(chunk, first, heads, fetcher);
    for (int32_t j = first; j < first + heads; ++j) {
      ChunkSoftmax(chunk, positions, j, fetcher);
      if (layout.bytes) ScaleWeights(chunk, j);
    }
    if (layout.bytes) {
      HeadValues<int8_t>(chunk, first, heads, fetcher);
    } else if (layout.bf16) {
      HeadValues<uint16_t>(chunk, first, heads, fetcher);
    } else {
      HeadValues<float>(chunk, first, heads, fetcher);
    }
  }
}

void CombineChunks(const DecodeCombine& combine) {
  const int32_t chunk_slots = DecodeChunkSlots(combine.slots);
  const int32_t chunks = (combine.slots + chunk_slots - 1) / chunk_slots;
  for (int32_t j = 0; j < combine.group; ++j) CombineOutput(combine, j, chunks);
  if (combine.score.enabled) {
    AddScores(combine, chunks, chunk_slots);
  } else if (combine.row_scores != nullptr) {
    for (int32_t i = 0; i < combine.slots; ++i) combine.row_scores[i] = 0.0F;
  }
}

namespace {

template <int kNoise>
void FillNoise(NoiseWords words,
               const int32_t* positions,
               int64_t count,
               float* out) {
  for (int64_t i = 0; i < count; i += kLanes) {
    int32_t keys[kLanes] = {};
    const int64_t lanes = count - i < kLanes ? count - i : kLanes;
    for (int64_t j = 0; j < lanes; ++j) keys[j] = positions[i + j];
    float zeta[kLanes];
    const auto nothing = [] {};
    DrawNoise<kNoise, false>(ListedPositions{keys}, words, kLanes, zeta,
                             nothing);
    for (int64_t j = 0; j < lanes; ++j) out[i + j] = zeta[j];
  }
}

void Noise(int32_t kind,
           NoiseWords words,
           const int32_t* positions,
           int64_t count,
           float* out) {
  switch (kind) {
    case kGumbelNoise:
      return FillNoise<kGumbelNoise>(words, positions, count, out);
    case kGaussianNoise:
      return FillNoise<kGaussianNoise>(words, positions, count, out);
    case kConstantNoise:
      return FillNoise<kConstantNoise>(words, positions, count, out);
    default:
      return FillNoise<kNoNoise>(words, positions, count, out);
  }
}

}  // namespace

extern const AttentionKernels kAttentionKernels;
const AttentionKernels kAttentionKernels = {
    .append = Append,
    .pack_query = PackQuery,
    .prompt_tile = AttendTile,
    .pairs_values = [](const HeadLayout&) { return false; },
    .decode_chunk = AttendChunk,
    .decode_combine = CombineChunks,
    .find_victim = FindVictim,
    .page_bounds = BoundBlock,
    .rotate_keys = RotateKeys,
    .noise = Noise,
};

}  // namespace kf::cpu::KF_SIMD_NS
