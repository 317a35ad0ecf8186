#include "tools/calibrate/probe.h"

#include <algorithm>
#include <array>
#include <iterator>
#include <numeric>
#include <random>

#include "absl/strings/str_cat.h"
#include "kernels/core/status.h"

namespace kf::tools {
namespace {

constexpr size_t kLeastParagraph = 80;
constexpr size_t kMostParagraph = 1200;
constexpr size_t kFactsInAll = 4;  // with the ones that are not asked for
constexpr std::array<const char*, 16> kNames = {
    "anchor", "basalt", "candle", "dagger", "falcon", "garnet",
    "hammer", "jacket", "ladder", "magnet", "orchid", "pebble",
    "quartz", "ribbon", "signal", "turbine"};

// The distributions of <random> differ between libraries; this does not.
size_t Draw(std::mt19937_64& random, size_t below) { return random() % below; }

template <typename T>
void Shuffle(std::mt19937_64& random, std::vector<T>& values) {
  for (size_t i = values.size(); i > 1; --i) {
    std::swap(values[i - 1], values[Draw(random, i)]);
  }
}

std::string Sentence(std::string_view name, size_t number) {
  return absl::StrCat("One of the special magic numbers for ", ToAbsl(name),
                      " is: ", number, ".");
}

}  // namespace

std::vector<std::string> Paragraphs(std::string_view text) {
  std::vector<std::string> found;
  while (!text.empty()) {
    const size_t end = std::min(text.find("\n\n"), text.size());
    const std::string_view paragraph = text.substr(0, end);
    if (paragraph.size() >= kLeastParagraph &&
        paragraph.size() <= kMostParagraph) {
      found.emplace_back(paragraph);
    }
    text.remove_prefix(std::min(end + 2, text.size()));
  }
  return found;
}

FactText MakeFact(size_t index,
                  size_t bytes,
                  std::span<const std::string> paragraphs) {
  KF_CHECK(!paragraphs.empty());
  std::mt19937_64 random(index);
  std::vector<size_t> order(paragraphs.size());
  std::iota(order.begin(), order.end(), size_t{0});
  Shuffle(random, order);
  std::vector<std::string> parts;
  size_t size = 0;
  for (const size_t i : order) {
    if (size >= bytes) break;
    parts.push_back(paragraphs[i]);
    size += paragraphs[i].size();
  }
  std::vector<std::string_view> names(kNames.begin(), kNames.end());
  Shuffle(random, names);
  std::array<size_t, kFactsInAll> numbers;
  for (size_t& number : numbers) {
    number = 1'000'000 + Draw(random, 9'000'000);
  }
  const auto insert = [&](size_t at, const std::string& sentence) {
    parts.insert(std::next(parts.begin(), static_cast<ptrdiff_t>(at)),
                 sentence);
  };
  if (index % 2 == 1) {
    for (size_t i = 1; i < kFactsInAll; ++i) {
      insert(Draw(random, parts.size() + 1), Sentence(names[i], numbers[i]));
    }
  }
  // Depths 0, 1/4, 1/2, 3/4, 1.
  insert((index % 5 * parts.size() + 2) / 4, Sentence(names[0], numbers[0]));
  FactText fact;
  for (const std::string& part : parts) {
    absl::StrAppend(&fact.prompt, part, "\n\n");
  }
  const absl::string_view name = ToAbsl(names[0]);
  absl::StrAppend(&fact.prompt, "What is the special magic number for ", name,
                  " mentioned in the text? The special magic number for ", name,
                  " mentioned in the text is");
  fact.answer = absl::StrCat(" ", numbers[0]);
  return fact;
}

std::vector<Probe> CutText(std::span<const uint32_t> ids,
                           size_t prompt_tokens,
                           size_t forced_tokens,
                           size_t count) {
  std::vector<Probe> probes;
  const size_t step = prompt_tokens + forced_tokens;
  while (probes.size() < count && ids.size() >= step) {
    const auto prompt = ids.first(prompt_tokens);
    const auto forced = ids.subspan(prompt_tokens, forced_tokens);
    probes.push_back({.kind = ProbeKind::kText,
                      .prompt = {prompt.begin(), prompt.end()},
                      .forced = {forced.begin(), forced.end()}});
    ids = ids.subspan(step);
  }
  return probes;
}

}  // namespace kf::tools
