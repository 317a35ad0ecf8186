// Merges neighbouring symbols, best pair first, until none can be merged: the
// loop that byte-level BPE and SentencePiece BPE share. O(n log n).
#pragma once

#include <cstdint>
#include <functional>
#include <queue>
#include <utility>
#include <vector>

#include "engine/request.h"

namespace kf::engine {

// A stretch of the text: bytes [begin, end), and its token or -1.
struct Symbol {
  size_t begin = 0;
  size_t end = 0;
  TokenId id = -1;
};

// What a pair of neighbours becomes. Lower cost merges first; of equal costs
// the leftmost pair.
template <typename Cost>
struct Merge {
  TokenId id = -1;  // -1: the pair does not merge
  Cost cost = {};
};

// Merges `symbols` (contiguous, fewer than 2^31) in place.
// find(left, right) -> Merge<Cost> depends on the two symbols alone.
template <typename Cost, typename FindMerge>
void MergeSymbols(std::vector<Symbol>& symbols, const FindMerge& find) {
  if (symbols.size() < 2) return;
  struct Link {
    int32_t previous;
    int32_t next;
  };
  struct Candidate {
    Cost cost;
    int32_t left;
    int32_t right;
    size_t begin;  // of the pair, when it was found: tells stale candidates
    size_t end;
    TokenId id;
    bool operator<(const Candidate& other) const {
      if (cost != other.cost) return cost > other.cost;
      return left > other.left;
    }
  };
  const auto count = static_cast<int32_t>(symbols.size());
  const auto at = [&symbols](int32_t i) -> Symbol& {
    return symbols[static_cast<size_t>(i)];
  };
  std::vector<Link> links;
  links.reserve(symbols.size());
  for (int32_t i = 0; i < count; ++i) {
    links.push_back({i - 1, i + 1 < count ? i + 1 : -1});
  }
  const auto link = [&links](int32_t i) -> Link& {
    return links[static_cast<size_t>(i)];
  };

  std::vector<Candidate> storage;
  storage.reserve(symbols.size());
  std::priority_queue<Candidate> queue(std::less<Candidate>(),
                                       std::move(storage));
  const auto push = [&](int32_t left, int32_t right) {
    if (left < 0 || right < 0) return;
    const Merge<Cost> merge = find(at(left), at(right));
    if (merge.id < 0) return;
    queue.push(
        {merge.cost, left, right, at(left).begin, at(right).end, merge.id});
  };
  for (int32_t i = 0; i + 1 < count; ++i) push(i, i + 1);

  while (!queue.empty()) {
    const Candidate best = queue.top();
    queue.pop();
    // A merged-away symbol is empty, and one that grew ends elsewhere.
    Symbol& left = at(best.left);
    Symbol& right = at(best.right);
    if (left.begin == left.end || right.begin == right.end ||
        left.end != right.begin || left.begin != best.begin ||
        right.end != best.end) {
      continue;
    }
    left.end = right.end;
    left.id = best.id;
    right.begin = right.end;
    const int32_t next = link(best.right).next;
    link(best.left).next = next;
    if (next >= 0) link(next).previous = best.left;
    push(link(best.left).previous, best.left);
    push(best.left, next);
  }
  std::erase_if(symbols, [](const Symbol& s) { return s.begin == s.end; });
}

}  // namespace kf::engine
