// Quest on the CPU: bounds of pages, and the pages that a decode step reads.
//
// A slot of the bounds' pages is a page of the cache: its K is the smallest
// value of each K channel; where V would be, the largest lie as K does, so that
// 16 pages are bounded at once. Of 8 bits they are integers and scales, too,
// rounded outwards but for the rounding of the scale.
#pragma once

#include <cstdint>

#include "kernels/backend.h"
#include "kernels/cpu/attention_kernels.h"

namespace kf::cpu {

// Takes the K of tokens [first, end) of `page` into its bounds; first = 0
// starts them anew, and 8 bits always do. Slots of the page, 0 <= first < end
// <= 16.
void UpdateBounds(const HeadLayout& layout,
                  const HeadPages& cache,
                  const HeadPages& bounds,
                  int32_t page,
                  int32_t first,
                  int32_t end);

// A head's choice of pages.
struct PageChoice {
  const HeadLayout* layout;
  HeadPages cache;
  HeadPages bounds;
  int32_t newest;     // page
  int32_t count;      // pages read, 1 .. newest + 1
  int32_t group;      // query heads
  const uint32_t* q;  // [group][query_words], packed
  uint64_t* keys;     // [newest rounded up to 16], working memory
  int32_t* pages;     // out [count]: page numbers of the pool, in slot order
};

// The newest page and those with the highest bounds, ties to the earlier; a
// bound that is NaN counts as infinity.
void ChoosePages(const AttentionKernels& kernels, const PageChoice& choice);

}  // namespace kf::cpu
