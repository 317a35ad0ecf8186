// Any text through small tokenizers of each kind: what encodes must decode to
// the text, with offsets that ascend within it, and stop strings must be found
// wherever the text is cut.
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "engine/tokenizer/stop_matcher.h"
#include "kernels/core/status.h"
#include "tests/engine/tokenizer/small_vocab.h"

namespace kf::engine {
namespace {

void CheckRoundTrip(const Tokenizer& tokenizer,
                    std::string_view text,
                    const EncodeOptions& options) {
  const auto encoding = tokenizer.Encode(text, options);
  if (!encoding.ok()) return;
  KF_CHECK(encoding->ids.size() == encoding->offsets.size());
  uint32_t last = 0;
  for (const uint32_t offset : encoding->offsets) {
    KF_CHECK(offset >= last && offset <= text.size());
    last = offset;
  }
  KF_CHECK(tokenizer.Decode(encoding->ids, true) == text);
}

void CheckStops(std::string_view text, size_t cut) {
  const auto run = [text](size_t step) {
    StopMatcher matcher({"ab", "aab", "b\n", "</s>"}, false);
    std::string out;
    for (size_t i = 0; i < text.size(); i += step) {
      const auto result = matcher.Push(text.substr(i, step));
      out += result.text;
      if (result.stopped) return out + "|" + result.matched;
    }
    return out + matcher.Finish();
  };
  KF_CHECK(run(1) == run(cut + 1));
}

std::unique_ptr<Tokenizer> MakeBpe(const std::string& pre) {
  SmallVocab vocab = SmallVocab::Bpe();
  vocab.extra = {};
  vocab.extra.AddString("tokenizer.ggml.pre", pre);
  vocab.extra.AddBool("tokenizer.ggml.add_bos_token", false);
  return *vocab.Load();
}

}  // namespace
}  // namespace kf::engine

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using kf::engine::SmallVocab;
  if (size == 0) return 0;
  // The first byte chooses, the rest is the text.
  static const auto* const tokenizers =
      new std::vector<std::unique_ptr<kf::engine::Tokenizer>>([] {
        std::vector<std::unique_ptr<kf::engine::Tokenizer>> all;
        for (const char* pre : {"gpt-2", "smollm", "llama-bpe", "qwen2"}) {
          all.push_back(kf::engine::MakeBpe(pre));
        }
        all.push_back(*SmallVocab::Spm({"\u2581", "a", "b", "\u2581a", "ab",
                                        "\u2581\u2581", "a\u2581"})
                           .Load());
        return all;
      }());
  const std::string_view text(reinterpret_cast<const char*>(data) + 1,
                              size - 1);
  for (const auto& tokenizer : *tokenizers) {
    kf::engine::CheckRoundTrip(
        *tokenizer, text,
        {.add_bos = false, .parse_special = (data[0] & 1U) != 0});
  }
  kf::engine::CheckStops(text, data[0]);
  return 0;
}
