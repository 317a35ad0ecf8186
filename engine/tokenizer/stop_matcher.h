// Finds the first stop string in text that arrives in pieces, and holds back
// text that may be the beginning of one.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace kf::engine {

// Thread-compatible: one per sequence.
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

 private:
  std::vector<std::string> stops_;
  bool include_stop_;
  std::string held_;
};

}  // namespace kf::engine
