// Register tiles of attention, q . k and p V, for the SIMD level of the
// including file (vec.h). Each logit and each output channel has one
// accumulator that takes channels, or slots, in order: its bits do not depend
// on how tiles are cut.
#pragma once

#include <stdint.h>

#include "kernels/cpu/attention_kernels.h"
#include "kernels/cpu/byte_vec.h"
#include "kernels/cpu/vec.h"

namespace kf::cpu::KF_SIMD_NS {

inline constexpr int kPageVecs = kSlots / kLanes;  // a step of K, in vectors

inline unsigned char* Block(const HeadPages& pages, int64_t page) {
  return pages.base + pages.pages[page] * pages.page_bytes;
}

// To all levels of cache, and to those beyond the first. By instruction: gcc 12
// takes a function that does nothing but __builtin_prefetch for one without
// effect, and drops its calls.
KF_SIMD_INLINE void Prefetch(const void* address) {
#if KF_SIMD_LEVEL == 0
  __builtin_prefetch(address);
#else
  __asm__ volatile("prefetcht0 %0" : : "m"(*static_cast<const char*>(address)));
#endif
}
KF_SIMD_INLINE void PrefetchFar(const void* address) {
#if KF_SIMD_LEVEL == 0
  __builtin_prefetch(address, 0, 2);
#else
  __asm__ volatile("prefetcht1 %0" : : "m"(*static_cast<const char*>(address)));
#endif
}

// Fetches the blocks of pages that are read later, line by line, while others
// are worked on: pages are scattered, so the machine's own prefetching starts
// anew at each, and it rests while nothing is read.
class LineFetcher {
 public:
  explicit LineFetcher(const BlocksAhead& ahead)
      : pages_(ahead.pages), left_(ahead.count), block_bytes_(ahead.bytes) {}

  KF_SIMD_INLINE void Fetch() {
    if (line_ == end_) {
      if (left_ == 0) return;
      line_ = Block(pages_, 0);
      end_ = line_ + block_bytes_;
      ++pages_.pages;
      --left_;
    }
    PrefetchFar(line_);
    line_ += 64;
  }

 private:
  HeadPages pages_;
  int32_t left_;
  int64_t block_bytes_;
  const unsigned char* line_ = nullptr;
  const unsigned char* end_ = nullptr;
};

// Queries in the form that QkTile takes while it fetches ahead: bf16 pairs for
// which there is no instruction as two floats, in place of two operations at
// every use.
inline void SplitPairs(const uint32_t* q, int64_t count, uint32_t* out) {
  for (int64_t i = 0; i < count; ++i) {
    out[2 * i] = q[i] << 16;
    out[2 * i + 1] = q[i] & 0xFFFF0000U;
  }
}

// How the K of a cache is multiplied with a query, for each type: a step's line
// of K becomes a Key, whose work all queries share, and is added up in an Acc.
struct FloatKeys {
  using Acc = VF;
  using Key = VF;
  static constexpr int kQueryWords = 1;  // of a step
  static Key Load(const void* line) { return BitsToFloat(LoadBits(line)); }
  static Key Query(const uint32_t* q) { return BitsToFloat(SetBits(*q)); }
  static Acc Step(Acc acc, Key k, Key q) { return Fma(k, q, acc); }
  static VF Logits(Acc acc, float scale, const void*) {
    return acc * Set(scale);
  }
  static float Scale(const uint32_t*, float scale) { return scale; }
};

struct Bf16Keys {
  using Acc = VF;
  using Key = VU;
  static constexpr int kQueryWords = 1;
  static Key Load(const void* line) { return LoadBits(line); }
  static Key Query(const uint32_t* q) { return SetBits(*q); }
  static Acc Step(Acc acc, Key k, Key q) { return DotBf16(acc, k, q); }
  static VF Logits(Acc acc, float scale, const void*) {
    return acc * Set(scale);
  }
  static float Scale(const uint32_t*, float scale) { return scale; }
};

// bf16 pairs and queries that SplitPairs has split.
struct SplitBf16Keys : Bf16Keys {
  struct Pair {
    VF even;
    VF odd;
  };
  static constexpr int kQueryWords = 2;
  static Pair Query(const uint32_t* q) {
    return {BitsToFloat(SetBits(q[0])), BitsToFloat(SetBits(q[1]))};
  }
  static Acc Step(Acc acc, Key k, const Pair& q) {
    return Fma(EvenBf16(k), q.even, Fma(OddBf16(k), q.odd, acc));
  }
};

// Integers of 8 bits by ones of 16: the sums are exact. The scales of the keys
// follow the last line.
struct ByteKeys {
  using Acc = VI;
  struct Key {
    VI even;  // pairs of 16 bits
    VI odd;
  };
  static constexpr int kQueryWords = 2;
  static Key Load(const void* line) {
    const VU words = LoadBits(line);
    return {EvenBytes(words), OddBytes(words)};
  }
  static Key Query(const uint32_t* q) {
    return {SetInt(static_cast<int32_t>(q[0])),
            SetInt(static_cast<int32_t>(q[1]))};
  }
  static Acc Step(Acc acc, const Key& k, const Key& q) {
    return DotShorts(DotShorts(acc, k.even, q.even), k.odd, q.odd);
  }
  static VF Logits(Acc acc, float scale, const void* after_keys) {
    return __builtin_convertvector(acc, VF) *
           (BitsToFloat(LoadBits(after_keys)) * Set(scale));
  }
  static float Scale(const uint32_t* after_query, float scale) {
    float query_scale;
    __builtin_memcpy(&query_scale, after_query, sizeof(query_scale));
    return scale * query_scale;
  }
};

// What a sweep over K fetches meanwhile, for the cache's sake alone: of pages
// further on in its list, and of the thread's next chunk.
struct NoAhead {
  KF_SIMD_INLINE void operator()(const unsigned char* /*near*/) const {}
  KF_SIMD_INLINE void Step() const {}
};
struct Ahead {
  LineFetcher* fetcher;
  bool second;  // line a step
  KF_SIMD_INLINE void operator()(const unsigned char* near) const {
    Prefetch(near);
  }
  KF_SIMD_INLINE void Step() const {
    fetcher->Fetch();
    if (second) fetcher->Fetch();
  }
};

// out[r][16 p + slot] = scale q[r] . k for kRows queries and kPages pages, of
// which `near` are the next.
template <typename Keys, int kRows, int kPages, typename Meanwhile>
inline void QkTile(const uint32_t* q,
                   int64_t q_stride,
                   const unsigned char* const* blocks,
                   const unsigned char* const* near,
                   int32_t steps,
                   float scale,
                   float* out,
                   int64_t out_stride,
                   const Meanwhile& meanwhile) {
  constexpr int kVecs = kPages * kPageVecs;
  typename Keys::Acc acc[kRows][kVecs] = {};
  for (int32_t s = 0; s < steps; ++s) {
    typename Keys::Key k[kVecs];
#pragma GCC unroll 16
    for (int v = 0; v < kVecs; ++v) {
      k[v] = Keys::Load(blocks[v / kPageVecs] + s * 64 +
                        (v % kPageVecs) * kVecBytes);
    }
#pragma GCC unroll 16
    for (int p = 0; p < kPages; ++p) meanwhile(near[p] + s * 64);
    meanwhile.Step();
#pragma GCC unroll 16
    for (int r = 0; r < kRows; ++r) {
      const auto qr = Keys::Query(q + r * q_stride + s * Keys::kQueryWords);
#pragma GCC unroll 16
      for (int v = 0; v < kVecs; ++v) {
        acc[r][v] = Keys::Step(acc[r][v], k[v], qr);
      }
    }
  }
#pragma GCC unroll 16
  for (int r = 0; r < kRows; ++r) {
    const float row_scale =
        Keys::Scale(q + r * q_stride + steps * Keys::kQueryWords, scale);
#pragma GCC unroll 16
    for (int v = 0; v < kVecs; ++v) {
      const unsigned char* after_keys =
          blocks[v / kPageVecs] + steps * 64 + (v % kPageVecs) * kVecBytes;
      Store(Keys::Logits(acc[r][v], row_scale, after_keys),
            out + r * out_stride + v * kLanes);
    }
  }
}

// Logits of some queries over some pages of one kv head.
struct QkWork {
  HeadPages pages;
  int32_t page_count;
  const uint32_t* q;  // [rows rounded up to kRows][q_stride]
  int64_t q_stride;
  int32_t rows;
  int32_t steps;
  float scale;
  float* out;  // [rows rounded up to kRows][out_stride]
  int64_t out_stride;
};

// Takes kPages pages at a time from `page` on, as long as there are so many;
// the first page left over.
template <typename Keys, int kRows, int kPages, typename Meanwhile>
inline int32_t QkSweep(const QkWork& work,
                       int32_t page,
                       const Meanwhile& meanwhile) {
  for (; page + kPages <= work.page_count; page += kPages) {
    const unsigned char* blocks[kPages];
    const unsigned char* near[kPages];
    for (int p = 0; p < kPages; ++p) {
      const int32_t next = page + kPages + p;
      blocks[p] = Block(work.pages, page + p);
      near[p] = next < work.page_count ? Block(work.pages, next) : blocks[p];
    }
    for (int32_t r = 0; r < work.rows; r += kRows) {
      QkTile<Keys, kRows, kPages>(
          work.q + r * work.q_stride, work.q_stride, blocks, near, work.steps,
          work.scale, work.out + r * work.out_stride + page * kSlots,
          work.out_stride, meanwhile);
    }
  }
  return page;
}

template <typename Keys, int kRows, int kPages, typename Meanwhile>
inline void QkLogits(const QkWork& work, const Meanwhile& meanwhile) {
  const int32_t page = QkSweep<Keys, kRows, kPages>(work, 0, meanwhile);
  if constexpr (kPages > 1) QkSweep<Keys, kRows, 1>(work, page, meanwhile);
}

using VH = uint16_t __attribute__((vector_size(kVecBytes / 2)));

// kLanes 16-bit numbers as words. By name where there is an instruction: gcc 12
// widens halves of a vector by themselves and puts them together again.
inline VU LoadHalves(const uint16_t* from) {
  VH half;
  __builtin_memcpy(&half, from, sizeof(half));
#if KF_SIMD_LEVEL == 0
  return __builtin_convertvector(half, VU);
#elif KF_SIMD_LEVEL == 1
  return reinterpret_cast<VU>(
      _mm256_cvtepu16_epi32(reinterpret_cast<__m128i>(half)));
#else
  return reinterpret_cast<VU>(
      _mm512_cvtepu16_epi32(reinterpret_cast<__m256i>(half)));
#endif
}

// kLanes bf16 values as f32.
inline VF LoadBf16(const uint16_t* from) {
  return BitsToFloat(LoadHalves(from) << 16);
}

// even[0], odd[0], even[1], ...
inline void StoreInterleaved(VF even, VF odd, float* out) {
#if KF_SIMD_LEVEL == 0
  Store(VF{even[0], odd[0], even[1], odd[1]}, out);
  Store(VF{even[2], odd[2], even[3], odd[3]}, out + kLanes);
#elif KF_SIMD_LEVEL == 1
  const VF low = _mm256_unpacklo_ps(even, odd);
  const VF high = _mm256_unpackhi_ps(even, odd);
  Store(_mm256_permute2f128_ps(low, high, 0x20), out);
  Store(_mm256_permute2f128_ps(low, high, 0x31), out + kLanes);
#else
  const __m512i first =
      _mm512_set_epi32(23, 7, 22, 6, 21, 5, 20, 4, 19, 3, 18, 2, 17, 1, 16, 0);
  const __m512i second = _mm512_set_epi32(31, 15, 30, 14, 29, 13, 28, 12, 27,
                                          11, 26, 10, 25, 9, 24, 8);
  Store(_mm512_permutex2var_ps(even, first, odd), out);
  Store(_mm512_permutex2var_ps(even, second, odd), out + kLanes);
#endif
}

// How kVecs vectors of one slot's channels are read and held: as they lie, or
// of bf16 pairs the even and the odd channels apart, which takes one operation
// a vector.
template <int kVecs>
inline void LoadValues(const float* from, VF (&values)[kVecs]) {
#pragma GCC unroll 16
  for (int c = 0; c < kVecs; ++c) values[c] = Load(from + c * kLanes);
}
template <int kVecs>
inline void LoadValues(const uint16_t* from, VF (&values)[kVecs]) {
  if constexpr (kVecs % 2 == 1) {
#pragma GCC unroll 16
    for (int c = 0; c < kVecs; ++c) values[c] = LoadBf16(from + c * kLanes);
  } else {
#pragma GCC unroll 16
    for (int c = 0; c < kVecs; c += 2) {
      const VU pairs = LoadBits(from + c * kLanes);
      values[c] = EvenBf16(pairs);
      values[c + 1] = OddBf16(pairs);
    }
  }
}

template <int kVecs>
inline void LoadValues(const int8_t* from, VF (&values)[kVecs]) {
#pragma GCC unroll 16
  for (int c = 0; c < kVecs; ++c) values[c] = LoadBytes(from + c * kLanes);
}

// Sums of such vectors, back in the channels' order.
template <int kVecs>
inline void StoreSums(const float* /*value*/,
                      const VF (&sums)[kVecs],
                      float* out) {
#pragma GCC unroll 16
  for (int c = 0; c < kVecs; ++c) Store(sums[c], out + c * kLanes);
}
template <int kVecs>
inline void StoreSums(const int8_t* /*value*/,
                      const VF (&sums)[kVecs],
                      float* out) {
  StoreSums(static_cast<const float*>(nullptr), sums, out);
}
template <int kVecs>
inline void StoreSums(const uint16_t* /*value*/,
                      const VF (&sums)[kVecs],
                      float* out) {
  if constexpr (kVecs % 2 == 1) {
#pragma GCC unroll 16
    for (int c = 0; c < kVecs; ++c) Store(sums[c], out + c * kLanes);
  } else {
#pragma GCC unroll 16
    for (int c = 0; c < kVecs; c += 2) {
      StoreInterleaved(sums[c], sums[c + 1], out + c * kLanes);
    }
  }
}

// acc[r][c] += sum over `slots` of p[r][slot] v[slot][c] for kRows rows and
// kVecs vectors of channels. Lanes beyond a row's end read what follows it
// (the next row, or what the block has after V) and are never used. `near` are
// the next values.
template <int kRows, int kVecs, typename Value, typename Meanwhile>
inline void PvTile(const float* p,
                   int64_t p_stride,
                   const Value* v,
                   const Value* near,
                   int64_t v_stride,
                   int64_t slots,
                   VF (&acc)[kRows][kVecs],
                   const Meanwhile& meanwhile) {
  constexpr int kLineValues = 64 / static_cast<int>(sizeof(Value));
  for (int64_t i = 0; i < slots; ++i) {
    VF values[kVecs];
    LoadValues(v + i * v_stride, values);
#pragma GCC unroll 16
    for (int c = 0; c < kVecs * kLanes; c += kLineValues) {
      meanwhile(
          reinterpret_cast<const unsigned char*>(near + i * v_stride + c));
    }
    meanwhile.Step();
#pragma GCC unroll 16
    for (int r = 0; r < kRows; ++r) {
      const VF weight = Set(p[r * p_stride + i]);
#pragma GCC unroll 16
      for (int c = 0; c < kVecs; ++c) {
        acc[r][c] = Fma(weight, values[c], acc[r][c]);
      }
    }
  }
}

}  // namespace kf::cpu::KF_SIMD_NS
