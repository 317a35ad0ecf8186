// What calibration measures with: prompts with a continuation that is forced,
// so that each token of it but the first is predicted from what the cache kept.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

namespace kf::tools {

enum class ProbeKind {
  kFact,  // a number named in the prompt and asked for at its end
  kText,  // how a text goes on
};

struct Probe {
  ProbeKind kind;
  std::vector<uint32_t> prompt;  // n >= 1 token ids
  std::vector<uint32_t> forced;  // T >= 2 token ids
};

// A fact's prompt and answer before they are tokens.
struct FactText {
  std::string prompt;  // paragraphs with the fact, the question, "... is"
  std::string answer;  // " 1234567"
};

// The paragraphs of a text: what blank lines part, 80 to 1,200 bytes each.
std::vector<std::string> Paragraphs(std::string_view text);

// Fact number `index`: the same index and paragraphs give the same fact. About
// `bytes` bytes of paragraphs in an order of its own; the fact is at one of
// five depths, and every second prompt has three other facts. `paragraphs` is
// not empty.
FactText MakeFact(size_t index,
                  size_t bytes,
                  std::span<const std::string> paragraphs);

// Stretches of `ids` that follow each other: `prompt_tokens` and
// `forced_tokens` each, at most `count`; kText.
std::vector<Probe> CutText(std::span<const uint32_t> ids,
                           size_t prompt_tokens,
                           size_t forced_tokens,
                           size_t count);

}  // namespace kf::tools
