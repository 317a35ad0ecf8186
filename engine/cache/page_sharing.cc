#include "engine/cache/page_sharing.h"

#include <utility>

#include "engine/cache/cache_plan.h"

namespace kf::engine {
namespace {

using PageLists = std::vector<std::vector<int32_t>>;

void Share(const PageLists& lists, PagePool& pool) {
  for (const auto& pages : lists) pool.Share(pages);
}

// Page `place` of a list becomes its owner's own.
void OwnPage(std::vector<int32_t>& pages,
             int32_t place,
             bool empty,
             PagePool& pool,
             std::vector<PageCopy>& copies) {
  int32_t& page = pages[static_cast<size_t>(place)];
  if (pool.owners(page) == 1) return;
  const int32_t own = pool.Take(1).front();
  if (!empty) copies.push_back({page, own});
  pool.Give({&page, 1});
  page = own;
}

}  // namespace

void SharePages(const SequenceCache& from, PagePool& pool, SequenceCache& to) {
  // First the new owner, then the old one's end: they may have pages in common.
  Share(from.pages, pool);
  Share(from.bound_pages, pool);
  auto pages = from.pages;
  auto bound_pages = from.bound_pages;
  GivePages(pool, to);
  to.pages = std::move(pages);
  to.bound_pages = std::move(bound_pages);
}

void ClonePages(const SequenceCache& from,
                PagePool& pool,
                SequenceCache& to,
                std::vector<PageCopy>& copies) {
  for (size_t layer = 0; layer < from.pages.size(); ++layer) {
    const auto& pages = from.pages[layer];
    to.pages.push_back(pool.Take(static_cast<int32_t>(pages.size())));
    // The free slot is behind the tokens of a prompt.
    const auto full = static_cast<size_t>(
        CeilDiv(from.held(static_cast<int32_t>(layer)), kPageTokens));
    for (size_t i = 0; i < full; ++i) {
      copies.push_back({pages[i], to.pages.back()[i]});
    }
    to.bound_pages.emplace_back();
  }
}

void OwnPageOf(int32_t slot,
               int32_t layer,
               PagePool& pool,
               SequenceCache& cache,
               std::vector<PageCopy>& copies) {
  const auto l = static_cast<size_t>(layer);
  const int32_t place = slot / kPageTokens;
  const int32_t held = cache.held(layer);
  // A page that begins at the first slot never used is empty; once a token has
  // been evicted, that slot may be in use.
  const bool empty =
      place * kPageTokens >= held && held < cache.rules.size(layer).budget;
  OwnPage(cache.pages[l], place, empty, pool, copies);
  // The bounds of a page are one slot of theirs.
  if (!cache.rules.bounded(layer)) return;
  const int32_t bounds = place / kPageTokens;
  OwnPage(cache.bound_pages[l], bounds,
          bounds * kPageTokens * kPageTokens >= held, pool, copies);
}

}  // namespace kf::engine
