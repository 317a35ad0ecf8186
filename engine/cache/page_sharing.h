// How the sequences of one request come to a cache of their own after its
// prompt: by copying its pages, or by having them in common until one writes
// (copy-on-write; PagePool counts the owners).
#pragma once

#include <cstdint>
#include <vector>

#include "engine/cache/page_pool.h"
#include "engine/cache/sequence_cache.h"
#include "kernels/backend.h"

namespace kf::engine {

// `to` owns all pages of `from` too, instead of what it had.
void SharePages(const SequenceCache& from, PagePool& pool, SequenceCache& to);

// `to`, which has none, gets as many pages of its own as `from` has after its
// prompt. The copies that fill them are added to `copies`.
void ClonePages(const SequenceCache& from,
                PagePool& pool,
                SequenceCache& to,
                std::vector<PageCopy>& copies);

// Before slot `slot` of a layer is written: its page becomes this cache's own.
// The pool has a page free wherever an owner may have to leave one. Where the
// page has held anything, a copy is added to `copies`.
void OwnPageOf(int32_t slot,
               int32_t layer,
               PagePool& pool,
               SequenceCache& cache,
               std::vector<PageCopy>& copies);

}  // namespace kf::engine
