#include "engine/tokenizer/special_matcher.h"

#include "kernels/core/status.h"

namespace kf::engine {

void SpecialMatcher::Add(std::string_view bytes, TokenId id, bool control) {
  KF_CHECK(!bytes.empty() && bytes.size() <= kMaxTokenBytes);
  starts_[static_cast<uint8_t>(bytes[0])] = true;
  uint32_t node = 0;
  for (const char c : bytes) {
    const uint64_t key = uint64_t{node} << 8 | static_cast<uint8_t>(c);
    const auto [it, added] =
        children_.try_emplace(key, static_cast<uint32_t>(nodes_.size()));
    if (added) nodes_.emplace_back();
    node = it->second;
  }
  if (nodes_[node].id < 0) nodes_[node] = {id, control};
}

std::optional<SpecialMatcher::Match> SpecialMatcher::MatchAt(
    std::string_view text, size_t pos, size_t control_end) const {
  if (!starts_[static_cast<uint8_t>(text[pos])]) return std::nullopt;
  std::optional<Match> best;
  uint32_t node = 0;
  for (size_t end = pos; end < text.size(); ++end) {
    const auto it =
        children_.find(uint64_t{node} << 8 | static_cast<uint8_t>(text[end]));
    if (it == children_.end()) break;
    node = it->second;
    const Node& here = nodes_[node];
    const size_t length = end + 1 - pos;
    if (here.id >= 0 && (!here.control || end + 1 <= control_end)) {
      best = Match{here.id, here.control, length};
    }
  }
  return best;
}

}  // namespace kf::engine
