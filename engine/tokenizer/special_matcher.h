// Finds user-defined and control tokens in text: leftmost, and of those that
// start at one place the longest.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "engine/request.h"

namespace kf::engine {

// A half-open range of byte offsets.
struct ByteRange {
  size_t begin = 0;
  size_t end = 0;
};

// A trie over the tokens' bytes. Immutable once filled, thread-safe.
class SpecialMatcher {
 public:
  // Bounds the work at one place of a hostile text.
  static constexpr size_t kMaxTokenBytes = 256;

  struct Match {
    TokenId id = 0;
    bool control = false;
    size_t length = 0;
  };

  // 1 <= bytes.size() <= kMaxTokenBytes. Of equal texts the first one added
  // stays.
  void Add(std::string_view bytes, TokenId id, bool control);

  // The longest token that starts at text[pos]. A control token counts only if
  // it ends at or before `control_end`.
  std::optional<Match> MatchAt(std::string_view text,
                               size_t pos,
                               size_t control_end) const;

 private:
  struct Node {
    TokenId id = -1;
    bool control = false;
  };

  std::vector<Node> nodes_ = {Node{}};
  // (node << 8 | byte) -> child.
  absl::flat_hash_map<uint64_t, uint32_t> children_;
  std::array<bool, 256> starts_ = {};
};

}  // namespace kf::engine
