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
void ChunkLogits(const DecodeChunk& chunk, int32_t first) {
  const HeadLayout& layout = *chunk.layout;
  const QkWork work = {chunk.keys,
                       (chunk.slots + kSlots - 1) / kSlots,
                       chunk.q + int64_t{first} * layout.steps,
                       kHeads,
                       layout.steps,
                       layout.scale,
                       chunk.logits + int64_t{first} * kDecodeChunk,
                       kDecodeChunk};
  if (layout.bf16) {
    QkLogits<kHeads, PagesAtOnce(kHeads), true, true>(work);
  } else {
    QkLogits<kHeads, PagesAtOnce(kHeads), false, true>(work);
  }
}

// out[r][c] = sum over the chunk of p[r][slot] v[slot][c].
template <int kHeads, int kVecs, typename Value>
void WeightedValues(const DecodeChunk& chunk,
                    int32_t first,
                    int32_t channel,
                    float* out,
                    int64_t out_stride) {
  const HeadLayout& layout = *chunk.layout;
  VF acc[kHeads][kVecs] = {};
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
    PvTile<kHeads, kVecs, true>(
        chunk.logits + int64_t{first} * kDecodeChunk + slot, kDecodeChunk,
        values_of(page), values_of(last ? page : page + 1), layout.d, slots,
        acc);
  }
#pragma GCC unroll 16
  for (int r = 0; r < kHeads; ++r) {
#pragma GCC unroll 16
    for (int c = 0; c < kVecs; ++c) {
      Store(acc[r][c], out + r * out_stride + channel + c * kLanes);
    }
  }
}

template <int kHeads, typename Value>
void ChunkValues(const DecodeChunk& chunk,
                 int32_t first,
                 float* out,
                 int64_t out_stride) {
  // Accumulators for 4 heads fit 32 registers, or 16 with half the channels.
  constexpr int kVecs = KF_SIMD_LEVEL >= 2 ? 4 : kHeads <= 2 ? 4 : 2;
  const int32_t width = chunk.layout->padded_d;
  int32_t channel = 0;
  for (; channel + kVecs * kLanes <= width; channel += kVecs * kLanes) {
    WeightedValues<kHeads, kVecs, Value>(chunk, first, channel, out,
                                         out_stride);
  }
  for (; channel < width; channel += kLanes) {
    WeightedValues<kHeads, 1, Value>(chunk, first, channel, out, out_stride);
  }
}

void HeadLogits(const DecodeChunk& chunk, int32_t first, int32_t heads) {
  switch (heads) {
    case 1:
      return ChunkLogits<1>(chunk, first);
    case 2:
      return ChunkLogits<2>(chunk, first);
    case 3:
      return ChunkLogits<3>(chunk, first);
    default:
      return ChunkLogits<4>(chunk, first);
  }
}

template <typename Value>
void HeadValues(const DecodeChunk& chunk, int32_t first, int32_t heads) {
  const int64_t stride = kPartialHeader + chunk.layout->padded_d;
  float* out = chunk.partial + first * stride + kPartialHeader;
  switch (heads) {
    case 1:
      return ChunkValues<1, Value>(chunk, first, out, stride);
    case 2:
      return ChunkValues<2, Value>(chunk, first, out, stride);
    case 3:
      return ChunkValues<3, Value>(chunk, first, out, stride);
    default:
      return ChunkValues<4, Value>(chunk, first, out, stride);
  }
}

// Softmax of one head's logits over the chunk, into the partial's header.
void ChunkSoftmax(const DecodeChunk& chunk,
                  const int32_t* positions,
                  int32_t head) {
  float* x = chunk.logits + int64_t{head} * kDecodeChunk;
  const RowSums sums =
      chunk.score.enabled
          ? ScoredSoftmax(chunk.score, x, chunk.slots,
                          ListedPositions{positions}, chunk.words[head],
                          chunk.numerators + head * chunk.numerators_stride)
          : CleanSoftmax(x, chunk.slots);
  float* header =
      chunk.partial + int64_t{head} * (kPartialHeader + chunk.layout->padded_d);
  header[kMax] = sums.max;
  header[kSum] = sums.sum;
  header[kLargest] = sums.largest;
  header[kNoisySum] = sums.noisy_sum;
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

// row[0, count) += x; the row may end inside the vector, and what follows it
// belongs to another thread.
void AddToRow(VF x, int32_t count, float* row) {
  const int32_t lanes = count < kLanes ? count : kLanes;
  for (int32_t i = 0; i < lanes; ++i) row[i] += x[i];
}

// Adds one head's noisy softmax to the page scores, or to the row's.
void AddScores(const DecodeCombine& combine, int32_t head, int32_t chunks) {
  const HeadLayout& layout = *combine.layout;
  const int64_t width = kPartialHeader + layout.padded_d;
  const float* first = combine.partial + head * width;
  const int64_t stride = combine.group * width;
  const float* top = first;
  for (int32_t c = 1; c < chunks; ++c) {
    const float* partial = first + c * stride;
    if (NoisyLead(partial, top) > 0.0F) top = partial;
  }
  const float inverse_tau = InverseTau(combine.score.tau);
  const auto weight = [top, inverse_tau](const float* partial) {
    return ExpOne(NoisyLead(partial, top) * inverse_tau);
  };
  float sum = 0.0F;
  for (int32_t c = 0; c < chunks; ++c) {
    const float* partial = first + c * stride;
    sum += weight(partial) * partial[kNoisySum];
  }
  const float inverse = 1.0F / sum;
  const float* numerators =
      combine.numerators + head * combine.numerators_stride;
  for (int32_t c = 0; c < chunks; ++c) {
    const VF share = Set(weight(first + c * stride) * inverse);
    const int32_t begin = c * kDecodeChunk;
    const int32_t end = combine.slots - begin < kDecodeChunk
                            ? combine.slots
                            : begin + kDecodeChunk;
    if (combine.row_scores != nullptr) {
      for (int32_t slot = begin; slot < end; slot += kLanes) {
        AddToRow(Load(numerators + slot) * share, end - slot,
                 combine.row_scores + slot);
      }
      continue;
    }
    for (int32_t slot = begin; slot < end; slot += kLanes) {
      float* scores =
          reinterpret_cast<float*>(Block(combine.pages, slot / kSlots) +
                                   layout.score_offset) +
          slot % kSlots;
      Store(Fma(Load(numerators + slot), share, Load(scores)), scores);
    }
  }
}

}  // namespace

void AttendChunk(const DecodeChunk& chunk) {
  const HeadLayout& layout = *chunk.layout;
  int32_t positions[kDecodeChunk];
  if (chunk.score.enabled) {
    for (int32_t slot = 0; slot < chunk.slots; slot += kSlots) {
      __builtin_memcpy(
          positions + slot,
          Block(chunk.pages, slot / kSlots) + layout.position_offset,
          kSlots * sizeof(int32_t));
    }
  }
  for (int32_t first = 0; first < chunk.group; first += kMaxHeads) {
    const int32_t heads =
        chunk.group - first < kMaxHeads ? chunk.group - first : kMaxHeads;
    HeadLogits(chunk, first, heads);
    for (int32_t j = first; j < first + heads; ++j) {
      ChunkSoftmax(chunk, positions, j);
    }
    if (layout.bf16) {
      HeadValues<uint16_t>(chunk, first, heads);
    } else {
      HeadValues<float>(chunk, first, heads);
    }
  }
}

void CombineChunks(const DecodeCombine& combine) {
  const int32_t chunks = (combine.slots + kDecodeChunk - 1) / kDecodeChunk;
  for (int32_t i = 0; combine.row_scores != nullptr && i < combine.slots; ++i) {
    combine.row_scores[i] = 0.0F;
  }
  for (int32_t j = 0; j < combine.group; ++j) {
    CombineOutput(combine, j, chunks);
    if (combine.score.enabled) AddScores(combine, j, chunks);
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
    DrawNoise<kNoise, false>(ListedPositions{keys}, words, kLanes, zeta);
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
    .decode_chunk = AttendChunk,
    .decode_combine = CombineChunks,
    .find_victim = FindVictim,
    .page_bounds = BoundBlock,
    .rotate_keys = RotateKeys,
    .noise = Noise,
};

}  // namespace kf::cpu::KF_SIMD_NS
