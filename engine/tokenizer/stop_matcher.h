// Finds the first stop string in text that arrives in pieces, and holds back
// text that may be the beginning of one.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace kf::engine {

// Thread-compatible: one per sequence. Linear in the text for each stop string,
// whatever the strings. Copies have the strings in common: a request may have
// many sequences, and their automata are ten times as large as the strings.
class StopMatcher {
 public:
  struct Result {
    std::string text;  // safe to emit now
    bool stopped = false;
    std::string matched;  // the stop string, when stopped
  };

  // `stops` are non-empty UTF-8 strings. include_stop: the matched string is
  // part of the emitted text.
  StopMatcher(std::vector<std::string> stops, bool include_stop);

  // The earliest match wins (the one that ends first; of those the longest).
  // After `stopped` the matcher must not be used again.
  Result Push(std::string_view text);
  // The held-back text, when generation ends for another reason.
  std::string Finish();

  bool SharesStringsWith(const StopMatcher& other) const {
    return patterns_ == other.patterns_;
  }

 private:
  // A Knuth-Morris-Pratt automaton.
  struct Pattern {
    std::string text;
    std::vector<size_t> fail;  // [i]: longest proper border of text[0, i)
  };

  std::shared_ptr<const std::vector<Pattern>> patterns_;
  // The text so far ends with so much of each pattern.
  std::vector<size_t> matched_;
  bool include_stop_;
  std::string held_;
};

}  // namespace kf::engine
