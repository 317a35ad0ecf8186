// The cache page of the CUDA backend: what lies where, for the host and for
// kernels.
//
// A page holds 16 token slots of one layer: one block for each of G kv heads,
//
//   K [16][dp] T | V [16][dp] T | position [16] int32 | score [16] float,
//
// where T is float or bf16 and dp is the head size d rounded up to a size that
// kernels are compiled for; channels d .. dp - 1 are zero, which changes
// neither a logit nor what is kept. A token's row of K is contiguous, so that
// four lanes read it by 16 bytes each, and 16 slots are one tile of a tensor
// core's product. Every field starts at a multiple of 16 bytes (of 64 within a
// block, if the pool does).
//
// Quest's bounds are pages of the same kind: slot i of a head holds the
// smallest (in K) and the largest (in V) value of each channel of page i.
//
// The functions are constexpr, so that device code may call them as they are
// (nvcc --expt-relaxed-constexpr). Thread-safe: plain values.
#pragma once

#include <cstddef>
#include <cstdint>

namespace kf::cuda {

inline constexpr int32_t kSlots = 16;  // of a page: kPageTokens of backend.h

// The head sizes that kernels are compiled for.
inline constexpr int32_t kHeadDims[] = {16, 32, 64, 80, 96, 128, 256};
inline constexpr int32_t kMaxHeadDim = 256;

// dp of a head size: the next of kHeadDims; 0 where there is none (d is odd,
// below 2 or above 256), which is an error when a model is loaded.
constexpr int32_t PaddedHeadDim(int32_t head_dim) {
  if (head_dim < 2 || head_dim % 2 != 0) return 0;
  for (const int32_t padded : kHeadDims) {
    if (head_dim <= padded) return padded;
  }
  return 0;
}

constexpr int32_t PagesFor(int32_t slots) {
  return (slots + kSlots - 1) / kSlots;
}

// One kv head's block of a page.
template <typename T, int kDim>
struct alignas(16) HeadBlock {
  T k[kSlots][static_cast<size_t>(kDim)];
  T v[kSlots][static_cast<size_t>(kDim)];
  int32_t position[kSlots];
  float score[kSlots];
};

// The same in numbers, for code that is not compiled for each T and dp. Offsets
// are in bytes, from the start of a head's block.
struct PageLayout {
  int32_t kv_heads = 0;  // G
  int32_t head_dim = 0;  // d
  int32_t padded_dim = 0;
  int32_t element_bytes = 0;  // 2 (bf16) or 4 (f32)
  int64_t v_offset = 0;
  int64_t position_offset = 0;
  int64_t score_offset = 0;
  int64_t head_bytes = 0;
  int64_t page_bytes = 0;
  bool operator==(const PageLayout&) const = default;
};

// Requires PaddedHeadDim(head_dim) != 0 and element_bytes of 2 or 4.
constexpr PageLayout MakePageLayout(int32_t kv_heads,
                                    int32_t head_dim,
                                    int32_t element_bytes) {
  PageLayout layout;
  layout.kv_heads = kv_heads;
  layout.head_dim = head_dim;
  layout.padded_dim = PaddedHeadDim(head_dim);
  layout.element_bytes = element_bytes;
  layout.v_offset = int64_t{kSlots} * layout.padded_dim * element_bytes;
  layout.position_offset = 2 * layout.v_offset;
  layout.score_offset = layout.position_offset + 4 * kSlots;
  layout.head_bytes = layout.score_offset + 4 * kSlots;
  layout.page_bytes = layout.head_bytes * kv_heads;
  return layout;
}

static_assert(MakePageLayout(1, 64, 4).head_bytes ==
              static_cast<int64_t>(sizeof(HeadBlock<float, 64>)));
static_assert(MakePageLayout(1, 80, 2).head_bytes ==
              static_cast<int64_t>(sizeof(HeadBlock<uint16_t, 80>)));

// A page list in device memory: PageSpan of backend.h. Slot s of a sequence is
// slot s % 16 of page pages[s / 16], whose address is base + pages[i] *
// page_bytes. `base` is a multiple of 16 bytes.
struct alignas(16) PageList {
  unsigned char* base = nullptr;
  const int32_t* pages = nullptr;
};

}  // namespace kf::cuda
