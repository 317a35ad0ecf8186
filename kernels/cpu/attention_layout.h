// Where things lie in a cache page, and which kernels serve a level: shared by
// the files that cut attention into work.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "kernels/backend.h"
#include "kernels/cpu/attention_kernels.h"
#include "kernels/cpu/simd_level.h"

namespace kf::cpu {

HeadLayout MakeHeadLayout(const AttentionShape& shape);

// Bytes of one kv head's block: K, V, positions, scores; a multiple of 64.
size_t HeadBytes(const AttentionShape& shape);

HeadPages MakeHeadPages(const AttentionShape& shape,
                        const PageSpan& span,
                        int32_t head);

const AttentionKernels& KernelsOf(SimdLevel level);

ScoreSpec MakeScoreSpec(const ScoreOptions& score);
AgeSpec MakeAgeSpec(const ScoreAge& age);

NoiseWords MakeNoiseWords(const ScoreOptions& score,
                          int32_t layer,
                          int32_t query_head,
                          int32_t position);

// The block of a head in page `page` of its list.
inline unsigned char* BlockOf(const HeadPages& pages, int32_t page) {
  return pages.base + pages.pages[page] * pages.page_bytes;
}
inline int32_t* PositionsOf(const HeadLayout& layout, unsigned char* block) {
  return reinterpret_cast<int32_t*>(block + layout.position_offset);
}
inline float* ScoresOf(const HeadLayout& layout, unsigned char* block) {
  return reinterpret_cast<float*>(block + layout.score_offset);
}

inline int32_t PagesFor(int32_t slots) {
  return (slots + kPageTokens - 1) / kPageTokens;
}

}  // namespace kf::cpu
