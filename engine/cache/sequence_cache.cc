#include "engine/cache/sequence_cache.h"

#include <span>

#include "engine/cache/cache_plan.h"

namespace kf::engine {

int32_t SequenceCache::most_held() const {
  int32_t budget = 0;
  for (const LayerSize& size : rules.sizes) {
    budget = std::max(budget, size.budget);
  }
  return std::min(budget, seen());
}

int32_t SequenceCache::evicted(int32_t more) const {
  int64_t sum = 0;
  for (const LayerSize& size : rules.sizes) {
    sum += std::max(seen() + more - size.budget, 0);
  }
  return static_cast<int32_t>(sum / std::ssize(rules.sizes));
}

void TakePages(const RequestSizes& sizes,
               int32_t layers,
               PagePool& pool,
               SequenceCache& cache) {
  for (int32_t layer = 0; layer < layers; ++layer) {
    cache.pages.push_back(pool.Take(PromptTokenPages(sizes, layer)));
    cache.bound_pages.push_back(pool.Take(BoundPages(sizes, layer)));
  }
}

int64_t ReturnPromptPages(const RequestSizes& sizes,
                          PagePool& pool,
                          SequenceCache& cache) {
  int64_t returned = 0;
  for (size_t layer = 0; layer < cache.pages.size(); ++layer) {
    std::vector<int32_t>& pages = cache.pages[layer];
    const auto kept =
        static_cast<size_t>(TokenPages(sizes, static_cast<int32_t>(layer)));
    pool.Give(std::span(pages).subspan(kept));
    returned += std::ssize(pages) - static_cast<int64_t>(kept);
    pages.resize(kept);
  }
  return returned;
}

void GrowPages(int32_t tokens, PagePool& pool, SequenceCache& cache) {
  const auto grow = [&pool](std::vector<int32_t>& pages, int32_t count) {
    const auto have = static_cast<int32_t>(pages.size());
    if (have >= count) return;
    const std::vector<int32_t> more = pool.Take(count - have);
    pages.insert(pages.end(), more.begin(), more.end());
  };
  const int32_t count = CeilDiv(tokens, kPageTokens);
  for (size_t layer = 0; layer < cache.pages.size(); ++layer) {
    grow(cache.pages[layer], count);
    if (cache.rules.bounded(static_cast<int32_t>(layer))) {
      grow(cache.bound_pages[layer], CeilDiv(count, kPageTokens));
    }
  }
}

void GivePages(PagePool& pool, SequenceCache& cache) {
  for (const auto& pages : cache.pages) pool.Give(pages);
  for (const auto& pages : cache.bound_pages) pool.Give(pages);
  cache.pages.clear();
  cache.bound_pages.clear();
}

}  // namespace kf::engine
