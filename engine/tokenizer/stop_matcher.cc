#include "engine/tokenizer/stop_matcher.h"

#include <algorithm>
#include <utility>

#include "kernels/core/status.h"

namespace kf::engine {
namespace {

// The state after `c`: how much of `text` the input now ends with.
size_t Advance(const std::string& text,
               const std::vector<size_t>& fail,
               size_t matched,
               char c) {
  while (matched > 0 && text[matched] != c) matched = fail[matched];
  return text[matched] == c ? matched + 1 : 0;
}

}  // namespace

StopMatcher::StopMatcher(std::vector<std::string> stops, bool include_stop)
    : matched_(stops.size(), 0), include_stop_(include_stop) {
  std::vector<Pattern> patterns;
  for (std::string& stop : stops) {
    KF_CHECK(!stop.empty());
    Pattern pattern;
    pattern.fail.assign(stop.size() + 1, 0);
    for (size_t i = 1; i < stop.size(); ++i) {
      pattern.fail[i + 1] =
          Advance(stop, pattern.fail, pattern.fail[i], stop[i]);
    }
    pattern.text = std::move(stop);
    patterns.push_back(std::move(pattern));
  }
  patterns_ = std::make_shared<const std::vector<Pattern>>(std::move(patterns));
}

StopMatcher::Result StopMatcher::Push(std::string_view text) {
  Result result;
  const size_t before = held_.size();
  held_ += text;
  for (size_t i = 0; i < text.size(); ++i) {
    const Pattern* found = nullptr;
    for (size_t p = 0; p < matched_.size(); ++p) {
      const Pattern& pattern = (*patterns_)[p];
      matched_[p] = Advance(pattern.text, pattern.fail, matched_[p], text[i]);
      if (matched_[p] == pattern.text.size() &&
          (found == nullptr || pattern.text.size() > found->text.size())) {
        found = &pattern;
      }
    }
    if (found != nullptr) {
      const size_t end = before + i + 1;
      const size_t keep = include_stop_ ? end : end - found->text.size();
      result.text = held_.substr(0, keep);
      result.stopped = true;
      result.matched = found->text;
      held_.clear();
      return result;
    }
  }
  size_t hold = 0;
  for (const size_t matched : matched_) hold = std::max(hold, matched);
  result.text = held_.substr(0, held_.size() - hold);
  held_.erase(0, held_.size() - hold);
  return result;
}

std::string StopMatcher::Finish() { return std::exchange(held_, {}); }

}  // namespace kf::engine
