// Quest: bounds of pages, and the pages that a decode step reads.
#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "kernels/ref/ref_attention.h"

namespace kf::ref {
namespace {

// Bounds of an 8-bit cache are integers too, rounded outwards.
template <typename Round>
void RoundBounds(std::span<float> bounds, const Round& round) {
  const ByteScale scale = ByteScaleOf(bounds, kByteRange);
  for (float& x : bounds) {
    x = std::clamp(round(x * scale.inverse), -kByteRange, kByteRange) *
        scale.scale;
  }
}

// The most that a rotated query can give to a key of a page.
double Bound(const std::vector<float>& query, const Slot& bounds) {
  double sum = 0.0;
  for (size_t c = 0; c < query.size(); ++c) {
    const auto x = static_cast<double>(query[c]);
    sum += std::max(x * static_cast<double>(bounds.k[c]),
                    x * static_cast<double>(bounds.v[c]));
  }
  return std::isnan(sum) ? std::numeric_limits<double>::infinity() : sum;
}

}  // namespace

void BoundPage(const AttentionShape& shape,
               int32_t tokens,
               const PageSpan& cache,
               const PageSpan& bounds,
               int32_t head,
               int32_t page) {
  const int32_t first = page * kPageTokens;
  const int32_t end = std::min(tokens, first + kPageTokens);
  const Slot to = SlotAt(shape, bounds, head, page);
  for (int32_t c = 0; c < shape.head_dim; ++c) {
    to.k[c] = to.v[c] = SlotAt(shape, cache, head, first).k[c];
    for (int32_t p = first + 1; p < end; ++p) {
      const float k = SlotAt(shape, cache, head, p).k[c];
      to.k[c] = std::min(to.k[c], k);
      to.v[c] = std::max(to.v[c], k);
    }
  }
  if (shape.cache_dtype != DType::kI8) return;
  const auto d = static_cast<size_t>(shape.head_dim);
  RoundBounds({to.k, d}, [](float x) { return std::floor(x); });
  RoundBounds({to.v, d}, [](float x) { return std::ceil(x); });
}

std::vector<Slot> ChooseKeys(const AttentionShape& shape,
                             const DecodeAttentionItem& item,
                             int32_t head,
                             const float* q,
                             const std::vector<Slot>& keys) {
  const int32_t newest = item.held / kPageTokens;
  if (item.read_pages == 0 || item.read_pages > newest) return keys;
  std::vector<double> bound;
  for (int32_t page = 0; page < newest; ++page) {
    double best = -std::numeric_limits<double>::infinity();
    for (int32_t j = 0; j < shape.query_heads / shape.kv_heads; ++j) {
      const std::vector<float> query =
          RoundedQuery({q + int64_t{j} * shape.head_dim,
                        static_cast<size_t>(shape.head_dim)},
                       shape.cache_dtype);
      best =
          std::max(best, Bound(query, SlotAt(shape, item.bounds, head, page)));
    }
    bound.push_back(best);
  }
  std::vector<int32_t> pages(bound.size());
  std::iota(pages.begin(), pages.end(), 0);
  std::stable_sort(pages.begin(), pages.end(), [&bound](int32_t a, int32_t b) {
    return bound[static_cast<size_t>(a)] > bound[static_cast<size_t>(b)];
  });
  pages.resize(static_cast<size_t>(item.read_pages) - 1);
  pages.push_back(newest);
  std::sort(pages.begin(), pages.end());
  std::vector<Slot> chosen;
  for (const int32_t page : pages) {
    const int32_t end = std::min(item.held + 1, (page + 1) * kPageTokens);
    for (int32_t p = page * kPageTokens; p < end; ++p) {
      chosen.push_back(keys[static_cast<size_t>(p)]);
    }
  }
  return chosen;
}

}  // namespace kf::ref
