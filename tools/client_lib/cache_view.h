// The prompt as a person reads it, with what the cache kept of it.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace kf::tools {

enum class CacheMarks : uint8_t {
  kColour,  // terminal attributes: bold, plain, dim, struck out
  kSigns,   // [-lost-] <most gone> (some gone) kept
};

// `tokens` are the prompt's, in bytes; their concatenation may be any bytes.
// `retention` has the share, 0 to 1, of the cache that holds each; where one is
// longer than the other, the rest is left out.
//
// The text comes back as valid UTF-8: a character is never split, and shows the
// smallest share of the tokens that make it up. Control characters but the
// newline and the tab, and those that turn the direction of writing, are
// escaped; what is not UTF-8 is U+FFFD. Ends without attributes.
std::string CacheView(const std::vector<std::string>& tokens,
                      const std::vector<double>& retention,
                      CacheMarks marks);

// One line that says what the marks mean.
std::string CacheLegend(CacheMarks marks);

// The mean of `retention`; 0 if it is empty.
double MeanRetention(const std::vector<double>& retention);

}  // namespace kf::tools
