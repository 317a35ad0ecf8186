// Register tiles of attention, q . k and p V, for the SIMD level of the
// including file (vec.h). Each logit and each output channel has one
// accumulator that takes channels, or slots, in order: its bits do not depend
// on how tiles are cut.
#pragma once

#include <stdint.h>

#include "kernels/cpu/attention_kernels.h"
#include "kernels/cpu/vec.h"

namespace kf::cpu::KF_SIMD_NS {

inline constexpr int kPageVecs = kSlots / kLanes;  // a step of K, in vectors

inline unsigned char* Block(const HeadPages& pages, int64_t page) {
  return pages.base + pages.pages[page] * pages.page_bytes;
}

inline VU BroadcastBits(const uint32_t* from) { return SetBits(*from); }

template <bool kBf16>
inline VF QkStep(VF acc, VU k, VU q) {
  if constexpr (kBf16) {
    return DotBf16(acc, k, q);
  } else {
    return Fma(BitsToFloat(k), BitsToFloat(q), acc);
  }
}

inline void Prefetch(const void* address) { __builtin_prefetch(address); }

// out[r][16 p + slot] = scale q[r] . k for kRows queries and kPages pages. With
// kAhead, K of the blocks `ahead` is fetched meanwhile: pages are scattered, so
// the machine's own prefetching starts anew at each.
template <int kRows, int kPages, bool kBf16, bool kAhead>
inline void QkTile(const uint32_t* q,
                   int64_t q_stride,
                   const unsigned char* const* blocks,
                   const unsigned char* const* ahead,
                   int32_t steps,
                   float scale,
                   float* out,
                   int64_t out_stride) {
  constexpr int kVecs = kPages * kPageVecs;
  VF acc[kRows][kVecs] = {};
  for (int32_t s = 0; s < steps; ++s) {
    VU k[kVecs];
#pragma GCC unroll 16
    for (int v = 0; v < kVecs; ++v) {
      k[v] = LoadBits(blocks[v / kPageVecs] + s * 64 +
                      (v % kPageVecs) * kVecBytes);
    }
    if constexpr (kAhead) {
#pragma GCC unroll 16
      for (int p = 0; p < kPages; ++p) Prefetch(ahead[p] + s * 64);
    }
#pragma GCC unroll 16
    for (int r = 0; r < kRows; ++r) {
      const VU qr = BroadcastBits(q + r * q_stride + s);
#pragma GCC unroll 16
      for (int v = 0; v < kVecs; ++v) {
        acc[r][v] = QkStep<kBf16>(acc[r][v], k[v], qr);
      }
    }
  }
#pragma GCC unroll 16
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 16
    for (int v = 0; v < kVecs; ++v) {
      Store(acc[r][v] * Set(scale), out + r * out_stride + v * kLanes);
    }
  }
}

// Logits of some queries over some pages of one kv head.
struct QkWork {
  HeadPages pages;
  int32_t page_count;
  const uint32_t* q;  // [rows rounded up to kRows][steps]
  int32_t rows;
  int32_t steps;
  float scale;
  float* out;  // [rows rounded up to kRows][out_stride]
  int64_t out_stride;
};

// Takes kPages pages at a time from `page` on, as long as there are so many;
// the first page left over. kAhead: see QkTile.
template <int kRows, int kPages, bool kBf16, bool kAhead>
inline int32_t QkSweep(const QkWork& work, int32_t page) {
  for (; page + kPages <= work.page_count; page += kPages) {
    const unsigned char* blocks[kPages];
    const unsigned char* ahead[kPages];
    for (int p = 0; p < kPages; ++p) {
      const int32_t next = page + kPages + p;
      blocks[p] = Block(work.pages, page + p);
      ahead[p] = next < work.page_count ? Block(work.pages, next) : blocks[p];
    }
    for (int32_t r = 0; r < work.rows; r += kRows) {
      QkTile<kRows, kPages, kBf16, kAhead>(
          work.q + int64_t{r} * work.steps, work.steps, blocks, ahead,
          work.steps, work.scale,
          work.out + r * work.out_stride + page * kSlots, work.out_stride);
    }
  }
  return page;
}

template <int kRows, int kPages, bool kBf16, bool kAhead>
inline void QkLogits(const QkWork& work) {
  const int32_t page = QkSweep<kRows, kPages, kBf16, kAhead>(work, 0);
  if constexpr (kPages > 1) QkSweep<kRows, 1, kBf16, kAhead>(work, page);
}

using VH = uint16_t __attribute__((vector_size(kVecBytes / 2)));

// kLanes bf16 values as f32.
inline VF LoadBf16(const uint16_t* from) {
  VH half;
  __builtin_memcpy(&half, from, sizeof(half));
  return BitsToFloat(__builtin_convertvector(half, VU) << 16);
}

inline VF LoadValue(const float* from) { return Load(from); }
inline VF LoadValue(const uint16_t* from) { return LoadBf16(from); }

// acc[r][c] += sum over `slots` of p[r][slot] v[slot][c] for kRows rows and
// kVecs vectors of channels. Lanes beyond a row's end read what follows it
// (the next row, or the block's positions) and are never used. With kAhead, the
// rows of `ahead` are fetched meanwhile.
template <int kRows, int kVecs, bool kAhead, typename Value>
inline void PvTile(const float* p,
                   int64_t p_stride,
                   const Value* v,
                   const Value* ahead,
                   int64_t v_stride,
                   int64_t slots,
                   VF (&acc)[kRows][kVecs]) {
  for (int64_t i = 0; i < slots; ++i) {
    VF values[kVecs];
#pragma GCC unroll 16
    for (int c = 0; c < kVecs; ++c) {
      values[c] = LoadValue(v + i * v_stride + c * kLanes);
    }
    if constexpr (kAhead) {
      constexpr int kBytes = kVecs * kLanes * static_cast<int>(sizeof(Value));
#pragma GCC unroll 16
      for (int byte = 0; byte < kBytes; byte += 64) {
        Prefetch(reinterpret_cast<const unsigned char*>(ahead + i * v_stride) +
                 byte);
      }
    }
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
